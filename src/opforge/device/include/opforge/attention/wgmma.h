// opforge/attention/wgmma.h - attention's forward pass on Hopper: TMA brings keys and values, warpgroups multiply and take exponentials in turns.
//
// One thread of the first warpgroup keeps rings of blocks of keys and of values full.  Each of the others holds 64 queries: their sums of weighted
// values stay in registers for all keys.  A warpgroup's exponentials of block j run under its own product of block j - 1 with the values, and under
// the products of the other warpgroups, which take turns at the tensor cores.  Weights never leave registers.  Blocks stay for many tiles, and where
// masks make some short take the next one when they are done; the first product of a tile runs under the last exponentials' product of the tile before,
// so that tensor cores have work while rows are written.  sm_90a alone.
//
// source    Shah et al., FlashAttention-3, arXiv:2407.08608; Dao, FlashAttention-2, arXiv:2307.08691; PTX ISA: wgmma, cp.async.bulk.tensor,
//           mbarrier, setmaxnreg
#ifndef OPFORGE_ATTENTION_WGMMA_H_
#define OPFORGE_ATTENTION_WGMMA_H_

#include "opforge/arch/hopper_heads.h"
#include "opforge/arch/scratch.h"
#include "opforge/numeric/math_device.h"

namespace opforge {
namespace attention {

using hopper::Barrier;
using hopper::kBox;

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
// A fused product of a score is exact, and that of the largest one, which is taken off it, rounded: the rest is a factor of all weights of a row, at the
// most 2^(1/16) up to here.  Beyond, it would leave the range of weights: then scores are multiplied before
constexpr float kFused = 1048576.0f;
constexpr int kFar = 1 << 29;  // a window without a limit reaches this far; lengths are below it

/// Sizes of a kernel: queries of 64 * kConsumers at a time against kBlockN keys, head dimensions up to kD and kE.  kSides: lengths, slopes or sinks
/// are given; a kernel that asks for them in each tile is 8 % slower without them.
template <typename T, int kD_, int kE_, int kBlockN_, int kConsumers_, int kStages_, bool kTurns_, bool kSides_>
struct ForwardShape {
  using Element = T;
  static constexpr int kD = kD_, kE = kE_, kBlockN = kBlockN_, kConsumers = kConsumers_, kStages = kStages_;
  static constexpr bool kTurns = kTurns_, kSides = kSides_;
  static constexpr int kBlockM = 64 * kConsumers, kThreads = 128 * (kConsumers + 1);
  static constexpr int kBoxesD = kD / kBox, kBoxesE = kE / kBox;
  static constexpr int kAhead = 2;  // tiles that the copying thread may have taken before the others have done with them
  static constexpr int kQueryBoxBytes = kBox * 128, kKeyBoxBytes = kBlockN * 128;
  static constexpr int kQueryBytes = kConsumers * kBoxesD * kQueryBoxBytes, kKeyBytes = kBoxesD * kKeyBoxBytes, kValueBytes = kBoxesE * kKeyBoxBytes;
  static constexpr int kRingBytes = 1024 + kStages * (kKeyBytes + kValueBytes) + 8 * (4 + 4 * kStages + 2 * kAhead) + 8 * kAhead;
  // queries of the next tile are there when the last ones have been read, where there is room for both
  static constexpr int kQueryStages = kRingBytes + 2 * kQueryBytes <= 232448 ? 2 : 1;
  static constexpr int kSharedBytes = kRingBytes + kQueryStages * kQueryBytes;
  // a warpgroup of the three or four gives back what the others take
  static constexpr int kCopyRegisters = kConsumers == 3 ? 32 : 40, kMathRegisters = kConsumers == 3 ? 160 : 232;
};

/// What a call asks, beside the tensors.
struct ForwardCall {
  int queries, keys, heads, group, value_dim;
  int shift, left, right;             // query i stands at i + shift and sees keys from there - left up to there + right
  int row_blocks, heads_together, all_heads;  // blocks of queries; heads whose keys and values fit the second-level cache together; heads of all entries
  float factor;                       // of raw scores, times log2(e); of capped ones, log2(e) * cap
  float inner;                        // a cap's argument is inner * raw score; 0 without a cap
  bool transformed;                   // scores are capped, or multiplied before their maximum is taken (a negative factor)
  bool whole_stores;                  // rows of out begin at multiples of 16 bytes, and are whole vectors of them
  const int* key_lengths;             // of each entry, or null; the next entry's is lengths_step further. Slopes and sinks of each head likewise
  const float *slopes, *sinks;
  int64_t lengths_step, slopes_step, sinks_step;
  int* taken;                         // tiles that blocks have taken beyond their first; null where all cost the same: then they are dealt out in turns
};

/// A tile: a block of queries of a head.  Of heads whose keys and values fit the second-level cache together, the tiles with the most keys come
/// first, so that what is left at the end is short.
struct Tile {
  int rows, head;  // block of queries, head of all entries

  __device__ __forceinline__ Tile(const ForwardCall& call, int at) {
    const int section = at / (call.heads_together * call.row_blocks), first = section * call.heads_together;
    const int together = min(call.heads_together, call.all_heads - first), in_section = at - first * call.row_blocks;
    rows = call.row_blocks - 1 - in_section / together;
    head = first + in_section % together;
  }
};

/// Blocks of keys that any query of some rows sees: from `last` down to `first`; none where last < first.
struct KeyBlocks {
  int first, last;
};
template <typename S>
__device__ __forceinline__ KeyBlocks key_blocks(const ForwardCall& call, int row0, int keys) {
  const int top = row0 + call.shift, bottom = min(row0 + S::kBlockM, call.queries) - 1 + call.shift;
  const int from = max(top - call.left, 0), to = min(bottom + call.right + 1, keys);
  return to > from ? KeyBlocks{from / S::kBlockN, (to - 1) / S::kBlockN} : KeyBlocks{0, -1};
}

/// Keys of an entry of the batch.
template <typename S>
__device__ __forceinline__ int keys_of(const ForwardCall& call, int entry) {
  return !S::kSides || call.key_lengths == nullptr ? call.keys : min(max(__ldg(call.key_lengths + entry * call.lengths_step), 0), call.keys);
}

/// A ring's slot and the parity of its phase.
template <int kStages>
struct Slot {
  int at = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++at == kStages) at = 0, parity ^= 1;
  }
};

template <typename S>
struct Shared {
  unsigned char *queries, *keys, *values;
  Barrier *queries_full, *queries_empty, *keys_full, *keys_empty, *values_full, *values_empty, *tiles_full, *tiles_empty;
  int2* tiles;  // block of queries, -1 behind the last tile, and head of all entries

  __device__ __forceinline__ explicit Shared(unsigned char* raw) {
    queries = raw + (1024 - shared_address(raw) % 1024) % 1024;
    keys = queries + S::kQueryStages * S::kQueryBytes;
    values = keys + S::kStages * S::kKeyBytes;
    queries_full = reinterpret_cast<Barrier*>(values + S::kStages * S::kValueBytes);
    queries_empty = queries_full + S::kQueryStages;
    keys_full = queries_empty + S::kQueryStages;
    keys_empty = keys_full + S::kStages;
    values_full = keys_empty + S::kStages;
    values_empty = values_full + S::kStages;
    tiles_full = values_empty + S::kStages;
    tiles_empty = tiles_full + S::kAhead;
    tiles = reinterpret_cast<int2*>(tiles_empty + S::kAhead);
  }
};

template <typename S>
__device__ __forceinline__ void produce(const Shared<S>& shared, const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v, const ForwardCall& call) {
  Slot<S::kStages> key, value;
  Slot<S::kQueryStages> query;
  Slot<S::kAhead> ahead;
  const int total = call.row_blocks * call.all_heads;
  for (int at = blockIdx.x;; at = call.taken != nullptr ? static_cast<int>(gridDim.x) + atomicAdd(call.taken, 1) : at + static_cast<int>(gridDim.x)) {
    hopper::wait(&shared.tiles_empty[ahead.at], ahead.parity ^ 1);
    const Tile tile(call, min(at, total - 1));
    shared.tiles[ahead.at] = make_int2(at < total ? tile.rows : -1, tile.head);
    hopper::arrive(&shared.tiles_full[ahead.at]);
    ahead.advance();
    if (at >= total) return;
    const int row0 = tile.rows * S::kBlockM, entry = tile.head / call.heads, head = tile.head % call.heads, shared_head = head / call.group;
    const KeyBlocks blocks = key_blocks<S>(call, row0, keys_of<S>(call, entry));
    if (blocks.last < blocks.first) continue;
    // a block's boxes into the slot of a ring that is free next
    const auto load = [&](Slot<S::kStages>& slot, Barrier* full, Barrier* empty, unsigned char* ring, auto boxes, const CUtensorMap* map, int block) {
      constexpr int kBoxes = decltype(boxes)::value, kBytes = kBoxes * S::kKeyBoxBytes;
      hopper::wait(&empty[slot.at], slot.parity ^ 1);
      hopper::arrive_and_expect_bytes(&full[slot.at], kBytes);
#pragma unroll
      for (int i = 0; i < kBoxes; ++i)
        hopper::start_box(ring + slot.at * kBytes + i * S::kKeyBoxBytes, map, i * kBox, block * S::kBlockN, shared_head, entry, &full[slot.at]);
      slot.advance();
    };
    const auto load_keys = [&](int block) {
      load(key, shared.keys_full, shared.keys_empty, shared.keys, std::integral_constant<int, S::kBoxesD>(), k, block);
    };
    const auto load_values = [&](int block) {
      load(value, shared.values_full, shared.values_empty, shared.values, std::integral_constant<int, S::kBoxesE>(), v, block);
    };
    hopper::wait(&shared.queries_empty[query.at], query.parity ^ 1);
    hopper::arrive_and_expect_bytes(&shared.queries_full[query.at], S::kQueryBytes);
#pragma unroll
    for (int i = 0; i < S::kConsumers * S::kBoxesD; ++i)
      hopper::start_box(shared.queries + query.at * S::kQueryBytes + i * S::kQueryBoxBytes, q, i % S::kBoxesD * kBox, row0 + i / S::kBoxesD * 64, head, entry,
                        &shared.queries_full[query.at]);
    query.advance();
    load_keys(blocks.last);
    for (int block = blocks.last - 1; block >= blocks.first; --block) {
      load_keys(block);
      load_values(block + 1);
    }
    load_values(blocks.first);
  }
}

/// What a thread keeps of its two rows: the largest score so far, and its own part of the sum of weights.
struct Running {
  float top[2], total[2];
};

/// Scores in place become weights: exponentials over the largest score so far. Gives what earlier sums are multiplied by.
template <int count>
__device__ __forceinline__ void weigh(float (&scores)[count], Running& running, float factor, float (&shrink)[2]) {
  float high[2] = {running.top[0], running.top[1]};
#pragma unroll
  for (int i = 0; i < count; ++i) high[i / 2 % 2] = fmaxf(high[i / 2 % 2], scores[i]);
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 1));
    high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 2));
    // a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
    base[r] = high[r] == -INFINITY ? 0.0f : __fmul_rn(high[r], factor);
    // rounded as `base` was: 1 where there is no larger score
    shrink[r] = exp2_approximate(__fmul_rn(running.top[r], factor) - base[r]);
    running.top[r] = high[r];
    running.total[r] *= shrink[r];
  }
  float times = factor;
  if (fmaxf(fabsf(base[0]), fabsf(base[1])) > kFused) {
#pragma unroll
    for (int i = 0; i < count; ++i) scores[i] = __fmul_rn(scores[i], factor);
    times = 1.0f;
  }
  // a block's weights are added up apart: a sum of all keys one after another would lose digits
  float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < count; ++i) {
    scores[i] = exp2_approximate(fmaf(scores[i], times, -base[i / 2 % 2]));
    parts[i % 4] += scores[i];
  }
  running.total[0] += parts[0] + parts[1];
  running.total[1] += parts[2] + parts[3];
}

/// Scores capped, or only multiplied, and less by the slope times the distance: in units of log2 from here on. `col0` is the place of the block's
/// first key, `position` that of the thread's first row.
template <int count>
__device__ __forceinline__ void transform(float (&scores)[count], float factor, float inner, float slope, int col0, int position) {
  if (inner != 0.0f) {
    // tanh(x) = 1 - 2 / (exp(2x) + 1): right at both ends, where exp is 0 or infinite
#pragma unroll
    for (int i = 0; i < count; ++i) scores[i] = 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(2.0f * kLog2E * inner * scores[i]));
  }
#pragma unroll
  for (int i = 0; i < count; ++i) scores[i] *= factor;
  if (slope == 0.0f) return;
  const int first = col0 + static_cast<int>(threadIdx.x) % 4 * 2 - position;
#pragma unroll
  for (int i = 0; i < count; ++i) scores[i] -= slope * fabsf(static_cast<float>(first + i / 4 * 8 + i % 2 - i / 2 % 2 * 8));
}

/// -inf where a key is not seen; `col0` is the place of the block's first key, `position` that of the thread's first row.
template <int count>
__device__ __forceinline__ void mask(float (&scores)[count], const ForwardCall& call, int keys, int col0, int position) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int first = static_cast<int>(threadIdx.x) % 4 * 2;
    const int most = min(position + 8 * r + call.right, keys - 1) - col0 - first, least = position + 8 * r - call.left - col0 - first;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (i / 2 % 2 != r) continue;
      const int at = i / 4 * 8 + i % 2;
      scores[i] = at > most || at < least ? -INFINITY : scores[i];
    }
  }
}

/// Exchanges words among four neighbouring lanes: word j of lane t becomes word t of lane j.
__device__ __forceinline__ void transpose_words(Pair (&words)[4]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int far = 1; far <= 2; far *= 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & far) continue;
      const Pair sent = lane & far ? words[j] : words[j + far];
      const Pair got = __shfl_xor_sync(0xffffffffu, sent, far);
      if (lane & far) words[j] = got; else words[j + far] = got;
    }
  }
}

/// Rows of out from the sums of a warpgroup: 64 bytes of a row for every four lanes.
template <typename T, int count>
__device__ __forceinline__ void store_rows(const float (&sums)[count], const float (&weight)[2], T* out, const ForwardCall& call, int row) {
  const int lane = threadIdx.x % 4;
  T* const line = out + static_cast<int64_t>(row) * call.value_dim;
  if (call.whole_stores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int end = row + 8 * r < call.queries ? call.value_dim : 0;  // columns that are written
      T* const at = line + 8 * r * call.value_dim + lane * 8;
#pragma unroll
      for (int i = 0; i < count / 16; ++i) {
        Pair words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = hopper::pack_two<T>(sums[i * 16 + j * 4 + 2 * r] * weight[r], sums[i * 16 + j * 4 + 2 * r + 1] * weight[r]);
        transpose_words(words);
        // a predicate, no branch: the next words' exchange need not wait
        asm volatile("{\n.reg .pred inside;\nsetp.lt.s32 inside, %5, %6;\n@inside st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(at + i * 32), "r"(words[0]), "r"(words[1]),
                     "r"(words[2]), "r"(words[3]), "r"(i * 32 + lane * 8), "r"(end)
                     : "memory");
      }
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int end = row + 8 * r < call.queries ? call.value_dim : 0;
#pragma unroll
    for (int i = 0; i < count / 4; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int col = i * 8 + lane * 2 + j;
        if (col < end) line[8 * r * call.value_dim + col] = store_from_float<T>(sums[i * 4 + 2 * r + j] * weight[r]);
      }
  }
}

/// Rows that see no key: zeros.
template <typename T>
__device__ __forceinline__ void store_zeros(T* out, const ForwardCall& call, int row) {
  for (int r = 0; r < 2; ++r)
    for (int col = threadIdx.x % 4; col < call.value_dim && row + 8 * r < call.queries; col += 4)
      out[static_cast<int64_t>(row + 8 * r) * call.value_dim + col] = store_from_float<T>(0.0f);
}

template <typename S>
__device__ __forceinline__ void consume(const Shared<S>& shared, typename S::Element* out, float* lse, const ForwardCall& call) {
  using T = typename S::Element;
  using Scores = hopper::Product<T, S::kBlockN, false, false>;
  using Values = hopper::ProductOfRegisters<T, S::kE, true>;
  const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, row_in_tile = group * 64 + thread / 32 * 16 + thread % 32 / 4;
  const uint64_t q = hopper::operand(shared_address(shared.queries) + group * S::kBoxesD * S::kQueryBoxBytes, S::kQueryBoxBytes, 1024);
  const uint64_t k = hopper::operand(shared_address(shared.keys), S::kKeyBoxBytes, 1024);
  const uint64_t v = hopper::operand(shared_address(shared.values), S::kKeyBoxBytes, 1024);
  const float factor = call.transformed ? 1.0f : call.factor;
  Slot<S::kStages> key, value;
  Slot<S::kQueryStages> query;
  Slot<S::kAhead> ahead;
  const auto await_turn = [&] {
    if constexpr (S::kTurns) hopper::named_barrier(1 + group, 256);
  };
  const auto give_turn = [&] {
    if constexpr (S::kTurns) hopper::arrive_at_named_barrier(1 + (group + 1) % S::kConsumers, 256);
  };
  // the first warpgroup's first turn is given by the last
  if (group == S::kConsumers - 1) give_turn();

  float scores[S::kBlockN / 2], sums[S::kE / 2] = {};
  Pair weights[S::kBlockN / 16][4];
  const auto multiply_keys = [&] {
    hopper::hold(scores);
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < S::kD / 16; ++i) {
      // sixteen terms further are 32 bytes, until the next box begins
      const uint64_t a = q + ((query.at * S::kQueryBytes + i / 4 * S::kQueryBoxBytes + i % 4 * 32) >> 4);
      Scores::run(scores, a, k + ((key.at * S::kKeyBytes + i / 4 * S::kKeyBoxBytes + i % 4 * 32) >> 4), i > 0);
    }
    hopper::commit_products();
  };
  const auto multiply_values = [&](bool add) {
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < S::kBlockN / 16; ++i) Values::run(sums, weights[i], v + ((value.at * S::kValueBytes + i * 16 * 128) >> 4), add || i > 0);
    hopper::commit_products();
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < S::kBlockN / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) weights[i][j] = hopper::pack_two<T>(scores[i * 8 + j * 2], scores[i * 8 + j * 2 + 1]);
    hopper::hold(weights);
  };

  int keys = call.keys;  // of the tile's entry
  float slope = 0.0f;    // of the tile's head, in units of log2
  int row0 = 0, head = 0, block = 0, first = 0;  // the tile at hand; block: the last one whose scores were computed, first: the tile's last one
  // a head's sink joins the sums of weights; -inf where there is none
  const auto sink_of = [&](int of_head) {
    return !S::kSides || call.sinks == nullptr ? -INFINITY : __ldg(call.sinks + of_head % call.heads * call.sinks_step) * kLog2E;
  };
  // rows of a tile, and the logarithms of their sums of weights
  const auto store = [&](int of_row0, int of_head, const Running& of) {
    const int row = of_row0 + row_in_tile;
    const float sink = sink_of(of_head);
    float weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = of.total[r];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      float top = total == 0.0f ? -INFINITY : of.top[r] * factor, part = 1.0f;
      if (sink > -INFINITY) {
        // both sums over the larger of the largest score and the sink
        const float higher = fmaxf(top, sink);
        part = exp2f(top - higher);
        total = total * part + (sink == higher ? 1.0f : exp2f(sink - higher));
        top = higher;
      }
      const bool nothing = top == -INFINITY;
      weight[r] = nothing ? 0.0f : part / total;
      if (thread % 4 == 0 && row + 8 * r < call.queries)
        lse[static_cast<int64_t>(of_head) * call.queries + row + 8 * r] = nothing ? -INFINITY : (top + log2f(total)) * kLn2;
    }
    store_rows<T>(sums, weight, out + static_cast<int64_t>(of_head) * call.queries * call.value_dim, call, row);
  };
  // the next tile that sees any key; rows of those that see none are written here
  const auto take = [&] {
    while (true) {
      hopper::wait(&shared.tiles_full[ahead.at], ahead.parity);
      // from one lane to all: what follows from it is known to be the same for the warp, and its branches and addresses cost one instruction
      const int2 tile = shared.tiles[ahead.at];
      const int rows = __shfl_sync(0xffffffffu, tile.x, 0);
      head = __shfl_sync(0xffffffffu, tile.y, 0);
      if (thread % 32 == 0) hopper::arrive(&shared.tiles_empty[ahead.at]);
      ahead.advance();
      if (rows < 0) return false;
      row0 = rows * S::kBlockM;
      if constexpr (S::kSides) {
        keys = __shfl_sync(0xffffffffu, keys_of<S>(call, head / call.heads), 0);
        slope = call.slopes == nullptr ? 0.0f : __ldg(call.slopes + head % call.heads * call.slopes_step) * kLog2E;
      }
      const KeyBlocks blocks = key_blocks<S>(call, row0, keys);
      block = blocks.last;
      first = blocks.first;
      if (block >= first) return true;
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + row_in_tile + 8 * r;
        if (thread % 4 == 0 && row < call.queries) lse[static_cast<int64_t>(head) * call.queries + row] = sink_of(head) * kLn2;
      }
      store_zeros<T>(out + static_cast<int64_t>(head) * call.queries * call.value_dim, call, row0 + row_in_tile);
    }
  };
  Running running{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  float shrink[2];
  const auto soften = [&] {
    if (call.transformed) transform(scores, call.factor, call.inner, slope, block * S::kBlockN, row0 + row_in_tile + call.shift);
    // blocks of keys that all queries of this warpgroup see whole are not masked
    const int top = row0 + group * 64 + call.shift, clear_to = min(keys, top + call.right + 1), clear_from = top + 63 - call.left;
    if ((block + 1) * S::kBlockN > clear_to || block * S::kBlockN < clear_from) mask(scores, call, keys, block * S::kBlockN, row0 + row_in_tile + call.shift);
    weigh(scores, running, factor, shrink);
  };
  const auto release_keys = [&] {
    if (thread == 0) hopper::arrive(&shared.keys_empty[key.at]);
    key.advance();
    if (block > first) return;
    // a tile's queries have met their last keys
    if (thread == 0) hopper::arrive(&shared.queries_empty[query.at]);
    query.advance();
  };
  const auto release_values = [&] {
    if (thread == 0) hopper::arrive(&shared.values_empty[value.at]);
    value.advance();
  };

  if (!take()) return;
  hopper::wait(&shared.queries_full[query.at], query.parity);
  hopper::wait(&shared.keys_full[key.at], key.parity);
  multiply_keys();
  hopper::wait_for_products<0>();
  hopper::hold(scores);
  release_keys();
  soften();
  const Running fresh{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  Running ended = running;
  int ended_row0 = 0, ended_head = 0;
  bool add = false, ends = false, multiplied = false;  // ends: the values that are multiplied are a tile's last
  // sums of an ended tile are written; those of one that goes on are made to fit its largest score so far
  const auto settle = [&] {
    if (ends) {
      store(ended_row0, ended_head, ended);
    } else {
#pragma unroll
      for (int i = 0; i < S::kE / 2; ++i) sums[i] *= shrink[i / 2 % 2];
    }
  };
#pragma unroll 1
  while (true) {
    // the loop's edge lies between the exponentials and this wait: without a branch between, ptxas 13.0 waits before them
    hopper::wait_for_products<0>();
    if (multiplied) release_values();
    hopper::hold(sums);
    hopper::hold(scores);  // the products have read the weights of before: now they may be overwritten
    pack();
    settle();
    add = multiplied && !ends;
    // the next block of keys may be the first of another tile: its scores are computed while this one's values are still added up
    ends = block == first;
    if (!ends) {
      --block;
    } else {
      ended_row0 = row0;
      ended_head = head;
      if (!take()) break;
      hopper::wait(&shared.queries_full[query.at], query.parity);
    }
    hopper::wait(&shared.keys_full[key.at], key.parity);
    await_turn();
    hopper::hold(sums);
    multiply_keys();
    hopper::wait(&shared.values_full[value.at], value.parity);
    multiply_values(add);
    give_turn();
    multiplied = true;
    hopper::wait_for_products<1>();
    hopper::hold(scores);
    release_keys();
    ended = running;
    if (ends) running = fresh;
    soften();
  }
  hopper::wait(&shared.values_full[value.at], value.parity);
  hopper::hold(sums);
  multiply_values(add);
  hopper::wait_for_products<0>();
  hopper::hold(sums);
  release_values();
  store(ended_row0, ended_head, running);
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attend_wgmma(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                 typename S::Element* out, float* lse, const __grid_constant__ ForwardCall call) {
  extern __shared__ unsigned char raw[];
  const Shared<S> shared(raw);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&q);
    hopper::prefetch_map(&k);
    hopper::prefetch_map(&v);
    for (int i = 0; i < S::kQueryStages; ++i) {
      hopper::init_barrier(&shared.queries_full[i], 1);
      hopper::init_barrier(&shared.queries_empty[i], S::kConsumers);
    }
    for (int i = 0; i < S::kStages; ++i) {
      hopper::init_barrier(&shared.keys_full[i], 1);
      hopper::init_barrier(&shared.keys_empty[i], S::kConsumers);
      hopper::init_barrier(&shared.values_full[i], 1);
      hopper::init_barrier(&shared.values_empty[i], S::kConsumers);
    }
    for (int i = 0; i < S::kAhead; ++i) {
      hopper::init_barrier(&shared.tiles_full[i], 1);
      hopper::init_barrier(&shared.tiles_empty[i], 4 * S::kConsumers);
    }
    hopper::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    hopper::shrink_registers<S::kCopyRegisters>();
    if (threadIdx.x == 0) produce<S>(shared, &q, &k, &v, call);
  } else {
    hopper::grow_registers<S::kMathRegisters>();
    consume<S>(shared, out, lse, call);
  }
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_WGMMA_H_
