// opforge/attention/wgmma_backward.h - attention's gradients on Hopper: a block of keys and values stays in shared memory, TMA brings queries to it.
//
// One thread of the first warpgroup keeps rings of blocks of queries and of what arrives for their outputs full.  Each of two others holds 64 keys:
// scores are computed with keys as rows, so that weights and slopes go from the registers where they were computed into the products that add up
// the gradients of values and keys.  Slopes alone are written to shared memory, since the gradient of the queries needs those of all 128 keys.
// It is added to float32 sums in global memory, 16 bytes of a thread at a time, in the order in which threads hold it: a last kernel puts it in rows.
// The next block's scores are computed while this one's gradients are.  sm_90a alone.
//
// source    Shah et al., FlashAttention-3, arXiv:2407.08608; Dao, FlashAttention-2, arXiv:2307.08691; PTX ISA: wgmma, cp.async.bulk.tensor,
//           mbarrier, setmaxnreg, red
#ifndef OPFORGE_ATTENTION_WGMMA_BACKWARD_H_
#define OPFORGE_ATTENTION_WGMMA_BACKWARD_H_

#include "opforge/attention/wgmma.h"

namespace opforge {
namespace attention {

/// Sizes of a kernel: 128 keys against kM queries at a time, head dimensions up to kD and kE.  kBent: scores are capped, or slopes are given.
/// kOrdered: blocks of keys add to the gradient of the queries one after another, so that it is the same each time.
template <typename T, int kD_, int kE_, int kM_, int kStages_, bool kBent_, bool kOrdered_>
struct BackwardShape {
  using Element = T;
  static constexpr int kD = kD_, kE = kE_, kM = kM_, kStages = kStages_;
  static constexpr bool kBent = kBent_, kOrdered = kOrdered_, kWide = false;
  static constexpr int kGroups = 2, kN = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kBoxesD = kD / kBox, kBoxesE = kE / kBox;
  static constexpr int kKeyBoxBytes = kN * 128, kQueryBoxBytes = kM * 128;
  static constexpr int kKeyBytes = kBoxesD * kKeyBoxBytes, kValueBytes = kBoxesE * kKeyBoxBytes;
  static constexpr int kQueryBytes = kBoxesD * kQueryBoxBytes, kArrivingBytes = kBoxesE * kQueryBoxBytes, kLineBytes = kM * 4;
  // two: who writes the next block's slopes need not wait until the other warpgroup has read this one's
  static constexpr int kSlopeBytes = kN * kM * 2, kSlopeStages = 2;
  static constexpr int kSharedBytes = 1024 + kKeyBytes + kValueBytes + kStages * (kQueryBytes + kArrivingBytes + 2 * kLineBytes) +
                                      kSlopeStages * kSlopeBytes + 8 * (1 + 4 * kStages) + 8;
  static constexpr int kCopyRegisters = 24, kMathRegisters = 240;
  // products that still run when the next block's scores are asked for: the gradient of the keys, where registers are left for its factors meanwhile
  static constexpr int kOver = kM == 64 && kBent ? 0 : 1;
  // the gradient of the queries is computed in squares of 64 x 64, one for each warpgroup
  static_assert(kM / 64 * kBoxesD == kGroups && kM % 64 == 0, "two squares of 64 queries and 64 of the head dimension");
};

/// What a call asks, beside the tensors.
struct BackwardCall {
  int queries, keys, heads, kv_heads, group, head_dim, value_dim;
  int shift, left, right;            // query i stands at i + shift and sees keys from there - left up to there + right
  int key_blocks, heads_together, all_kv_heads;  // blocks of keys; heads of keys that are worked on together; heads of keys of all entries
  int rows;                          // queries, up to a multiple of the block: how far heads of lse, middle and sums lie apart
  float factor;                      // of raw scores, times log2(e); of capped ones, log2(e) * cap
  float inner;                       // a cap's argument is inner * raw score; 0 without a cap
  float scale;                       // of raw scores
  bool whole_keys, whole_values;     // rows of dk and dv begin at multiples of 16 bytes, and are whole vectors of them
  const int* key_lengths;            // of each entry, or null; the next entry's is lengths_step further. Slopes of each head likewise
  const float* slopes;
  int64_t lengths_step, slopes_step;
  const float *lse, *middle;         // [all heads, rows]: log-sum-exps in units of log(2), +inf where a row sees nothing or is none; see prepare_rows
  float* sums;                       // [all heads, rows / 64, kD / 64, 8, 128, 4]: the gradient of the queries as warpgroups hold it, not yet scaled
  int* turns;                        // ordered: of each square of sums, how many blocks of keys have added to it
  int* taken;                        // ordered: tiles that blocks have taken
};

/// Blocks of queries that see any key of a block, from `first` up to, not including, `end`.
template <typename S>
__device__ __forceinline__ int2 query_blocks(const BackwardCall& call, int key0, int keys) {
  const int last_key = min(key0 + S::kN, keys) - 1;
  const int from = max(key0 - call.shift - call.right, 0), to = min(last_key + call.left - call.shift + 1, call.queries);
  return key0 < keys && to > from ? make_int2(from / S::kM, (to + S::kM - 1) / S::kM) : make_int2(0, 0);
}

template <typename S>
struct BackwardShared {
  unsigned char *keys, *values, *queries, *arriving, *slopes;
  float *lse, *middle;
  Barrier *keys_full, *queries_full, *queries_empty, *arriving_full, *arriving_empty;
  int* tile;

  __device__ __forceinline__ explicit BackwardShared(unsigned char* raw) {
    keys = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
    values = keys + S::kKeyBytes;
    queries = values + S::kValueBytes;
    arriving = queries + S::kStages * S::kQueryBytes;
    slopes = arriving + S::kStages * S::kArrivingBytes;
    lse = reinterpret_cast<float*>(slopes + S::kSlopeStages * S::kSlopeBytes);
    middle = lse + S::kStages * S::kM;
    keys_full = reinterpret_cast<Barrier*>(middle + S::kStages * S::kM);
    queries_full = keys_full + 1;
    queries_empty = queries_full + S::kStages;
    arriving_full = queries_empty + S::kStages;
    arriving_empty = arriving_full + S::kStages;
    tile = reinterpret_cast<int*>(arriving_empty + S::kStages);
  }
};

/// A block of keys of a head.  Of heads that are worked on together, the first blocks of keys come first: under a causal mask most queries see them.
struct KeyTile {
  int key0, entry, head;  // head of keys within its entry of the batch

  template <typename S>
  __device__ __forceinline__ static KeyTile of(const BackwardCall& call, int at) {
    const int section = at / (call.heads_together * call.key_blocks), first = section * call.heads_together;
    const int together = min(call.heads_together, call.all_kv_heads - first), in_section = at - first * call.key_blocks;
    const int head = first + in_section % together;
    return {in_section / together * S::kN, head / call.kv_heads, head % call.kv_heads};
  }
};

/// What a block does: a tile, the keys of its entry, and the blocks of queries that see any of the tile's.
template <typename S>
struct Work {
  KeyTile tile;
  int keys;
  int2 blocks;

  __device__ __forceinline__ Work(const BackwardCall& call, int at) : tile(KeyTile::of<S>(call, at)) {
    keys = call.key_lengths == nullptr ? call.keys : min(max(__ldg(call.key_lengths + tile.entry * call.lengths_step), 0), call.keys);
    blocks = query_blocks<S>(call, tile.key0, keys);
  }
};

/// Starts copying `bytes` bytes, a multiple of 16 from addresses that are, to shared memory; the barrier is told of them.
__device__ __forceinline__ void start_line(void* target, const void* source, int bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(target)),
               "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/// What these registers held is not needed any more: a product that adds nothing to its sums writes them next.
template <int count>
__device__ __forceinline__ void forget(float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "=f"(sums[i])::"memory");
}

/// Adds four floats to global memory, which nobody waits for.
__device__ __forceinline__ void add_four(float* target, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(target)), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

/// Waits until the counter is `turn`. What is added after it cannot come before: additions are not begun on a guess.
__device__ __forceinline__ void await_turn(const int* counter, int turn) {
  int now;
  do {
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(__cvta_generic_to_global(counter)) : "memory");
  } while (now != turn);
}
__device__ __forceinline__ void pass_turn(int* counter, int turn) {
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(counter)), "r"(turn) : "memory");
}

template <typename S>
__device__ __forceinline__ void produce_queries(const BackwardShared<S>& shared, const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v,
                                                const CUtensorMap* dout, const BackwardCall& call, const KeyTile& tile, int2 blocks) {
  hopper::arrive_and_expect_bytes(shared.keys_full, S::kKeyBytes + S::kValueBytes);
#pragma unroll
  for (int i = 0; i < S::kBoxesD; ++i)
    hopper::start_box(shared.keys + i * S::kKeyBoxBytes, k, i * kBox, tile.key0, tile.head, tile.entry, shared.keys_full);
#pragma unroll
  for (int i = 0; i < S::kBoxesE; ++i)
    hopper::start_box(shared.values + i * S::kKeyBoxBytes, v, i * kBox, tile.key0, tile.head, tile.entry, shared.keys_full);
  Slot<S::kStages> slot;
  for (int member = 0; member < call.group; ++member) {
    const int head = tile.head * call.group + member;
    const int64_t line = static_cast<int64_t>(tile.entry * call.heads + head) * call.rows;
    for (int block = blocks.x; block < blocks.y; ++block) {
      const int row0 = block * S::kM;
      const auto load = [&](Barrier* full, Barrier* empty, unsigned char* ring, auto boxes, const CUtensorMap* map, float* lines, const float* source) {
        constexpr int kBoxes = decltype(boxes)::value, kBytes = kBoxes * S::kQueryBoxBytes;
        hopper::wait(&empty[slot.at], slot.parity ^ 1);
        hopper::arrive_and_expect_bytes(&full[slot.at], kBytes + S::kLineBytes);
#pragma unroll
        for (int i = 0; i < kBoxes; ++i)
          hopper::start_box(ring + slot.at * kBytes + i * S::kQueryBoxBytes, map, i * kBox, row0, head, tile.entry, &full[slot.at]);
        start_line(lines + slot.at * S::kM, source + line + row0, S::kLineBytes, &full[slot.at]);
      };
      load(shared.queries_full, shared.queries_empty, shared.queries, std::integral_constant<int, S::kBoxesD>(), q, shared.lse, call.lse);
      load(shared.arriving_full, shared.arriving_empty, shared.arriving, std::integral_constant<int, S::kBoxesE>(), dout, shared.middle, call.middle);
      slot.advance();
    }
  }
}

/// Columns from col0 on of rows of a gradient, from the sums of a warpgroup, times `weight`: 64 bytes of a row for every four lanes.  `row` is the
/// thread's first of `rows` rows of `dim` elements.
template <typename T, int count>
__device__ __forceinline__ void store_gradient(const float (&sums)[count], float weight, T* out, int rows, int dim, bool whole, int row, int col0 = 0) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool inside = row + 8 * r < rows;
    T* line = out + static_cast<int64_t>(row + 8 * r) * dim;
#pragma unroll
    for (int i = 0; i < count / 16; ++i) {
      const auto of = [&](int j, int odd) { return sums[i * 16 + j * 4 + 2 * r + odd] * weight; };
      if (whole) {
        Pair words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = hopper::pack_two<T>(of(j, 0), of(j, 1));
        transpose_words(words);
        const int col = col0 + i * 32 + lane * 8;
        if (inside && col < dim)
          asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(line + col), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int col = col0 + i * 32 + j / 2 * 8 + lane * 2 + j % 2;
          if (inside && col < dim) line[col] = store_from_float<T>(of(j / 2, j % 2));
        }
      }
    }
  }
}

/// Which square of sums a warpgroup adds to.
template <typename S>
__device__ __forceinline__ int square_of(const BackwardCall& call, const KeyTile& tile, int block, int member, int group) {
  const int head = tile.entry * call.heads + tile.head * call.group + member;
  return S::kM == 128 ? head * (call.rows / 64) + block * 2 + group : (head * (call.rows / 64) + block) * S::kBoxesD + group;
}

/// How many blocks of keys before a tile's see any query of a block: they are neighbours.
template <typename S>
__device__ __forceinline__ int turn_of(const BackwardCall& call, const KeyTile& tile, int block) {
  return tile.key0 / S::kN - max(block * S::kM + call.shift - call.left, 0) / S::kN;
}

/// A warp beside each warpgroup that adds: tells the next block of keys whose turn it is, once what was added stands.
template <typename S>
__device__ __forceinline__ void pass_turns(const BackwardCall& call, const KeyTile& tile, int2 blocks, int group) {
  for (int member = 0; member < call.group; ++member) {
    for (int block = blocks.x; block < blocks.y; ++block) {
      hopper::named_barrier(2 + group, 160);
      __threadfence();
      if (threadIdx.x % 32 == 0) pass_turn(call.turns + square_of<S>(call, tile, block, member, group), turn_of<S>(call, tile, block) + 1);
    }
  }
}

template <typename S>
__device__ __forceinline__ void consume_queries(const BackwardShared<S>& shared, typename S::Element* dk, typename S::Element* dv, const BackwardCall& call,
                                                const KeyTile& tile, int keys, int2 blocks) {
  using T = typename S::Element;
  using Scores = hopper::Product<T, 64, false, false>;
  using Keys = hopper::ProductOfRegisters<T, S::kD, true>;
  using Values = hopper::ProductOfRegisters<T, S::kE, true>;
  using Queries = hopper::Product<T, 64, true, true>;
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int row_in_block = group * 64 + thread / 32 * 16 + lane / 4;
  constexpr int kSteps = S::kM / 64;  // of 64 queries, one after another: registers for more scores than that are not left
  // rows of keys and values, of queries and of what arrives: for scores their dimensions are added over, for gradients their queries
  const uint64_t k = hopper::operand(shared_address(shared.keys) + group * 64 * 128, 0, 1024);
  const uint64_t v = hopper::operand(shared_address(shared.values) + group * 64 * 128, 0, 1024);
  const uint64_t q = hopper::operand(shared_address(shared.queries), S::kQueryBoxBytes, 1024);
  const uint64_t g = hopper::operand(shared_address(shared.arriving), S::kQueryBoxBytes, 1024);
  // this warpgroup's square of the gradient of the queries: 64 of the queries where a block has 128, else 64 of their dimensions
  constexpr bool kOfQueries = kSteps == 2;
  const uint64_t slopes = hopper::operand(shared_address(shared.slopes) + (kOfQueries ? group * S::kN * 128 : 0), 0, 1024);
  const uint64_t all_k = hopper::operand(shared_address(shared.keys) + (kOfQueries ? 0 : group * S::kKeyBoxBytes), 0, 1024);
  // where a lane's row of eight slopes begins; its bytes are swizzled
  const uint32_t own_slopes = (group * 64 + thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8) * 128;

  float sum_k[S::kD / 2] = {}, sum_v[S::kE / 2] = {}, scores[kSteps][32], inner[32], square[32];
  Pair weights[kSteps][4][4], steep[kSteps][4][4];
  Slot<S::kStages> slot;
  int block = blocks.x, member = 0, slope_stage = 0;
  float slope = 0.0f;
  // products of this warpgroup's keys with the 64 queries of a step, and of its values with what arrives for those
  const auto multiply_scores = [&](int step) {
    forget(scores[step]);
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < S::kD / 16; ++i)
      Scores::run(scores[step], k + ((i / 4 * S::kKeyBoxBytes + i % 4 * 32) >> 4),
                  q + ((slot.at * S::kQueryBytes + i / 4 * S::kQueryBoxBytes + step * 64 * 128 + i % 4 * 32) >> 4), i > 0);
    hopper::commit_products();
  };
  const auto multiply_inner = [&](int step) {
    forget(inner);
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < S::kE / 16; ++i)
      Scores::run(inner, v + ((i / 4 * S::kKeyBoxBytes + i % 4 * 32) >> 4),
                  g + ((slot.at * S::kArrivingBytes + i / 4 * S::kQueryBoxBytes + step * 64 * 128 + i % 4 * 32) >> 4), i > 0);
    hopper::commit_products();
  };
  // a score as exponent of its weight: times log2(e), less the distance's part
  const int position = tile.key0 + row_in_block - call.shift - lane % 4 * 2;
  const auto weight_of = [&](int i, float score, float lse, int row0) {
    float exponent = fmaf(score, call.factor, -lse);
    if (S::kBent && slope != 0.0f) exponent -= slope * fabsf(static_cast<float>(position + i / 2 % 2 * 8 - (row0 + i / 4 * 8 + i % 2)));
    return exp2_approximate(exponent);
  };
  // which of its scores a thread's keys are not seen by: `f` of those
  const auto hidden = [&](int row0, const auto& f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = tile.key0 + row_in_block + 8 * r, first = row0 + lane % 4 * 2;
      const int least = key - call.shift - call.right - first, most = key < keys ? key - call.shift + call.left - first : -1;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int at = i / 4 * 8 + i % 2;
        if (i / 2 % 2 == r && (at < least || at > most)) f(i);
      }
    }
  };
  // a step's scores become weights, which are added to the gradient of the values. Bent scores stay, since the slopes need them: their weights are
  // computed twice
  const auto weigh_step = [&](auto step_) {
    constexpr int step = decltype(step_)::value;
    float(&own)[32] = scores[step];
    const int row0 = block * S::kM + step * 64, key0 = tile.key0 + group * 64;
    const float* lse = shared.lse + slot.at * S::kM + step * 64 + lane % 4 * 2;
    const bool edge = key0 + 63 > row0 + call.shift + call.right || key0 < row0 + 63 + call.shift - call.left || key0 + 64 > keys;
    if constexpr (S::kBent) {
      if (call.inner != 0.0f) {
        // tanh(x) = 1 - 2 / (exp(2x) + 1): right at both ends, where exp is 0 or infinite
#pragma unroll
        for (int i = 0; i < 32; ++i) own[i] = 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(2.0f * kLog2E * call.inner * own[i]));
      }
      if (edge) hidden(row0, [&](int i) { own[i] = -INFINITY; });
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) own[i] = weight_of(i, own[i], lse[i / 4 * 8 + i % 2], row0);
      if (edge) hidden(row0, [&](int i) { own[i] = 0.0f; });
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float two[2];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int i = c * 8 + j * 2 + odd;
          two[odd] = own[i];
          if constexpr (S::kBent) two[odd] = own[i] == -INFINITY ? 0.0f : weight_of(i, own[i], lse[i / 4 * 8 + odd], row0);
        }
        weights[step][c][j] = hopper::pack_two<T>(two[0], two[1]);
      }
    }
    hopper::hold(weights[step]);
    hopper::hold(sum_v);
    hopper::fence_before_products();
#pragma unroll
    for (int c = 0; c < 4; ++c) Values::run(sum_v, weights[step][c], g + ((slot.at * S::kArrivingBytes + (step * 4 + c) * 16 * 128) >> 4), 1);
    hopper::commit_products();
  };
  // a step's slopes, in registers and in shared memory
  const auto slope_step = [&](auto step_) {
    constexpr int step = decltype(step_)::value;
    const int row0 = block * S::kM + step * 64;
    const float* lse = shared.lse + slot.at * S::kM + step * 64 + lane % 4 * 2;
    const float* middle = shared.middle + slot.at * S::kM + step * 64 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float over = inner[i] - middle[i / 4 * 8 + i % 2];
      float weight = scores[step][i];
      if constexpr (S::kBent) {
        weight = weight == -INFINITY ? 0.0f : weight_of(i, weight, lse[i / 4 * 8 + i % 2], row0);
        if (call.inner != 0.0f) weight *= scores[step][i] == -INFINITY ? 0.0f : 1.0f - scores[step][i] * scores[step][i];
      }
      inner[i] = weight * over;
    }
    unsigned char* box = shared.slopes + slope_stage * S::kSlopeBytes + step * S::kN * 128;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      Pair(&own)[4] = steep[step][c];
#pragma unroll
      for (int j = 0; j < 4; ++j) own[j] = hopper::pack_two<T>(inner[c * 8 + j * 2], inner[c * 8 + j * 2 + 1]);
      hopper::store_matrices(box + own_slopes + ((c * 2 + lane / 16) ^ (lane % 8)) * 16, own[0], own[1], own[2], own[3]);
    }
    hopper::hold(steep[step]);
  };
  const auto add_square = [&] {
    float* target = call.sums + static_cast<int64_t>(square_of<S>(call, tile, block, member, group)) * 4096 + thread * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) add_four(target + i * 512, square[i * 4], square[i * 4 + 1], square[i * 4 + 2], square[i * 4 + 3]);
    // a warp that does nothing else tells the next block of keys: it waits until what was added stands
    if constexpr (S::kOrdered) hopper::named_barrier(2 + group, 160);
  };
  constexpr std::integral_constant<int, 0> kFirst;
  constexpr std::integral_constant<int, kSteps - 1> kLast;

  if (blocks.y > blocks.x) {
    hopper::wait(shared.keys_full, 0);
    bool began = false;
#pragma unroll 1
    while (true) {
      if (S::kBent && call.slopes != nullptr) slope = __ldg(call.slopes + (tile.head * call.group + member) * call.slopes_step) * kLog2E;
      hopper::wait(&shared.queries_full[slot.at], slot.parity);
      multiply_scores(0);
      hopper::wait(&shared.arriving_full[slot.at], slot.parity);
      multiply_inner(0);
      if constexpr (kSteps == 2) multiply_scores(1);
      hopper::wait_for_products<kSteps>();
      hopper::hold(scores[0]);
      // the block before has given its last gradient: its queries are done with
      if (began && thread == 0) hopper::arrive(&shared.queries_empty[(slot.at + S::kStages - 1) % S::kStages]);
      weigh_step(kFirst);
      hopper::wait_for_products<kSteps>();
      hopper::hold(inner);
      slope_step(kFirst);
      if constexpr (kSteps == 2) {
        multiply_inner(1);
        hopper::wait_for_products<2>();
        hopper::hold(scores[1]);
        weigh_step(kLast);
        hopper::wait_for_products<1>();
        hopper::hold(inner);
        slope_step(kLast);
      }
      // all warpgroups' slopes: what they wrote is seen by the products that follow
      hopper::fence_async_proxy();
      hopper::named_barrier(1, 128 * S::kGroups);
      forget(square);
      hopper::fence_before_products();
#pragma unroll
      for (int i = 0; i < S::kN / 16; ++i)
        Queries::run(square, slopes + ((slope_stage * S::kSlopeBytes + i * 16 * 128) >> 4), all_k + ((i * 16 * 128) >> 4), i > 0);
      hopper::commit_products();
      hopper::hold(sum_k);
      hopper::fence_before_products();
#pragma unroll
      for (int c = 0; c < kSteps * 4; ++c) Keys::run(sum_k, steep[c / 4][c % 4], q + ((slot.at * S::kQueryBytes + c * 16 * 128) >> 4), 1);
      hopper::commit_products();
      if constexpr (S::kOrdered) {
        // blocks of keys before this one that see any of these queries have all added, or have yet to
        if (lane == 0) await_turn(call.turns + square_of<S>(call, tile, block, member, group), turn_of<S>(call, tile, block));
        __syncwarp();
      }
      hopper::wait_for_products<S::kOver>();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if constexpr (S::kOver == 0) hopper::hold(steep[step]);
        hopper::hold(weights[step]);
      }
      if constexpr (S::kOver == 0) hopper::hold(sum_k);
      hopper::hold(square);
      if (thread == 0) hopper::arrive(&shared.arriving_empty[slot.at]);
      add_square();
      began = true;
      slope_stage ^= 1;
      slot.advance();
      if (++block == blocks.y) {
        block = blocks.x;
        if (++member == call.group) break;
      }
    }
    hopper::wait_for_products<0>();
    hopper::hold(sum_k);
    hopper::hold(sum_v);
  }
  const int64_t line = static_cast<int64_t>(tile.entry * call.kv_heads + tile.head) * call.keys;
  store_gradient<T>(sum_v, 1.0f, dv + line * call.value_dim, call.keys, call.value_dim, call.whole_values, tile.key0 + row_in_block);
  store_gradient<T>(sum_k, call.scale, dk + line * call.head_dim, call.keys, call.head_dim, call.whole_keys, tile.key0 + row_in_block);
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    differentiate_wgmma(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                        const __grid_constant__ CUtensorMap dout, typename S::Element* dk, typename S::Element* dv, const __grid_constant__ BackwardCall call) {
  extern __shared__ unsigned char raw[];
  const BackwardShared<S> shared(raw);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&q);
    hopper::prefetch_map(&k);
    hopper::prefetch_map(&v);
    hopper::prefetch_map(&dout);
    hopper::init_barrier(shared.keys_full, 1);
    for (int i = 0; i < S::kStages; ++i) {
      hopper::init_barrier(&shared.queries_full[i], 1);
      hopper::init_barrier(&shared.queries_empty[i], S::kGroups);
      hopper::init_barrier(&shared.arriving_full[i], 1);
      hopper::init_barrier(&shared.arriving_empty[i], S::kGroups);
    }
    hopper::fence_barrier_init();
    // by number of taking: whoever waits for a block of keys knows that it has begun
    if constexpr (S::kOrdered) *shared.tile = atomicAdd(call.taken, 1);
  }
  __syncthreads();
  const auto bring = [&](const Work<S>& work) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0 && work.blocks.y > work.blocks.x) produce_queries<S>(shared, &q, &k, &v, &dout, call, work.tile, work.blocks);
    if (S::kOrdered && (warp == 1 || warp == 2)) pass_turns<S>(call, work.tile, work.blocks, warp - 1);
  };
  const auto add = [&](const Work<S>& work) {
    consume_queries<S>(shared, dk, dv, call, work.tile, work.keys, work.blocks);
  };
  if constexpr (S::kOrdered) {
    // each finds its work for itself: with what they have in common, registers do not suffice
    if (threadIdx.x >= 128) {
      hopper::grow_registers<S::kMathRegisters>();
      add(Work<S>(call, __shfl_sync(0xffffffffu, *shared.tile, 0)));
    } else {
      hopper::shrink_registers<S::kCopyRegisters>();
      bring(Work<S>(call, __shfl_sync(0xffffffffu, *shared.tile, 0)));
    }
  } else {
    const Work<S> work(call, blockIdx.x);
    if (threadIdx.x < 128) {
      hopper::shrink_registers<S::kCopyRegisters>();
      bring(work);
    } else {
      hopper::grow_registers<S::kMathRegisters>();
      add(work);
    }
  }
}

/// A tensor that is read by rows: strides in elements.
template <typename T>
struct Lines {
  const T* data;
  int64_t entry, head, row, col;
};

/// What the main kernel asks of each row: its log-sum-exp in units of log(2), +inf where it sees nothing, and the sum of dout * out less dlse.
/// Sixteen lanes take a row; those from `queries` up to `rows` are none.
template <typename T, bool kVectors>
__global__ void prepare_rows(Lines<T> out, Lines<T> dout, Lines<float> lse, Lines<float> dlse, float* lse_rows, float* middle, int heads, int queries, int rows,
                             int value_dim, int64_t all_rows) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 16;
  const int lane = threadIdx.x % 16;
  if (at >= all_rows) return;
  const int row = static_cast<int>(at % rows), all = static_cast<int>(at / rows), entry = all / heads, head = all % heads;
  const bool inside = row < queries;
  float sum = 0.0f;
  if (inside) {
    const T* a = out.data + entry * out.entry + head * out.head + row * out.row;
    const T* b = dout.data + entry * dout.entry + head * dout.head + row * dout.row;
    if constexpr (kVectors) {
      for (int col = lane * 8; col < value_dim; col += 128) {
        const Vec<T, 8> left = Vec<T, 8>::load(a + col), right = Vec<T, 8>::load(b + col);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(load_as_float(left[i]), load_as_float(right[i]), sum);
      }
    } else {
      for (int col = lane; col < value_dim; col += 16) sum = fmaf(load_as_float(a[col * out.col]), load_as_float(b[col * dout.col]), sum);
    }
  }
  // lanes of rows that are none take part
#pragma unroll
  for (int far = 8; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), sum, far);
  if (lane != 0) return;
  const float own = inside ? lse.data[entry * lse.entry + head * lse.head + row * lse.row] : -INFINITY;
  lse_rows[at] = own == -INFINITY ? INFINITY : own * kLog2E;
  middle[at] = inside ? sum - dlse.data[entry * dlse.entry + head * dlse.head + row * dlse.row] : 0.0f;
}

/// Rows of dq from the sums of all blocks of keys, scaled: a warpgroup takes a square of 64 queries and 64 of their dimensions.
template <typename T>
__global__ void __launch_bounds__(128)
    place_queries(const float* sums, T* dq, int boxes, int squares_of_head, int queries, int head_dim, bool whole, float scale) {
  const int64_t square = blockIdx.x, head = square / squares_of_head;
  const int in_head = static_cast<int>(square % squares_of_head), row0 = in_head / boxes * 64, col0 = in_head % boxes * kBox;
  if (row0 >= queries || col0 >= head_dim) return;
  const float4* source = reinterpret_cast<const float4*>(sums + square * 4096) + threadIdx.x;
  float own[32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four = __ldcs(source + i * 128);
    own[i * 4] = four.x, own[i * 4 + 1] = four.y, own[i * 4 + 2] = four.z, own[i * 4 + 3] = four.w;
  }
  store_gradient<T>(own, scale, dq + head * queries * head_dim, queries, head_dim, whole, row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col0);
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_WGMMA_BACKWARD_H_
