// opforge/attention/wgmma_fp8.h - attention's forward pass of E4M3 tensors on Hopper: attention/wgmma.h with 8-bit products and sums of two levels.
//
// As there one thread keeps rings of keys and values full and warpgroups of 64 queries take turns at the tensor cores.  What differs:
//   values    8-bit operands have their terms side by side, so v is transposed before, by a kernel of its own (transpose_values).  It puts the keys of
//             each 16 in the order in which the sums of a product lie in registers as an 8-bit left operand: weights go into the second product as they are
//   weights   are exponentials of up to 2^8, so that small ones are normal E4M3 numbers; the sum of weights has the same factor
//   sums      tensor cores keep some 14 bits of a sum of FP8 products.  After every few blocks of keys the sums move to shared memory, where they are
//             carried on in float32, and begin at 0 again: registers are what is scarce
//   scales    of q are in a row's factor of the scores, those of k (one for a block of keys) in the block's maximum and in that factor: no score is
//             multiplied once more.  That of v multiplies the result
//
// source    Shah et al., FlashAttention-3, arXiv:2407.08608, section 3.3; PTX ISA: register fragments of wgmma.m64nNk32
#ifndef OPFORGE_ATTENTION_WGMMA_FP8_H_
#define OPFORGE_ATTENTION_WGMMA_FP8_H_

#include "opforge/arch/hopper_fp8.h"
#include "opforge/attention/wgmma.h"

namespace opforge {
namespace attention {

constexpr float kLift = 8.0f;         // weights are up to 2^8: E4M3 ends at 448
constexpr float kLeast = 0x1p-120f;  // where products of scales underflow, scores are as good as 0, while those of unseen keys stay -inf

/// Sizes of a kernel, as ForwardShape has them.  kEvery: blocks of keys after which sums leave the tensor core; 0: never.
template <int kD_, int kE_, int kBlockN_, int kConsumers_, int kStages_, bool kTurns_, int kEvery_, bool kSides_>
struct Fp8Shape {
  static constexpr int kD = kD_, kE = kE_, kBlockN = kBlockN_, kConsumers = kConsumers_, kStages = kStages_;
  static constexpr int kEvery = kEvery_;
  static constexpr bool kTurns = kTurns_, kSides = kSides_;
  static constexpr int kBlockM = 64 * kConsumers, kThreads = 128 * (kConsumers + 1);
  static constexpr int kBoxD = kD % 128 == 0 ? 128 : 64, kBoxesD = kD / kBoxD;  // bytes of a row that lie side by side, swizzled
  static constexpr int kBoxN = kBlockN % 128 == 0 ? 128 : kBlockN % 64 == 0 ? 64 : 32, kBoxesN = kBlockN / kBoxN;
  static constexpr int kAhead = 2;
  static constexpr int kQueryBoxBytes = 64 * kBoxD, kKeyBoxBytes = kBlockN * kBoxD, kValueBoxBytes = kE * kBoxN;
  static constexpr int kQueryBytes = kConsumers * kBoxesD * kQueryBoxBytes, kKeyBytes = kBoxesD * kKeyBoxBytes, kValueBytes = kBoxesN * kValueBoxBytes;
  static constexpr int kSumsBytes = kEvery ? kConsumers * 64 * kE * 4 : 0;
  static constexpr int kRingBytes = 1024 + kSumsBytes + kStages * (kKeyBytes + kValueBytes) + 8 * (4 + 4 * kStages + 2 * kAhead) + 8 * kAhead;
  static constexpr int kQueryStages = kRingBytes + 2 * kQueryBytes <= 232448 ? 2 : 1;
  static constexpr int kSharedBytes = kRingBytes + kQueryStages * kQueryBytes;
  static constexpr int kCopyRegisters = kConsumers == 3 ? 32 : 40, kMathRegisters = kConsumers == 3 ? 160 : 232;
};

/// What a call asks beside what attention does.  Steps are in elements; 0 where one scale serves all.
struct Fp8Call : ForwardCall {
  const float *q_scale, *k_scale, *v_scale;
  int64_t q_scale_entry, q_scale_head, q_scale_block, k_scale_entry, k_scale_head, k_scale_block, v_scale_entry, v_scale_head;
  int q_block, k_blocks;  // rows of q that share a scale; blocks of keys that share one, 0 for all
  bool float16;           // out is, else bfloat16
  bool v_columns;         // each column of v has a scale, side by side; else a head has one
};

/// Which of 16 keys stands at place `place` of a row of transposed values: lane c of four holds places 4 c to 4 c + 3 of a left operand, and has sums of
/// keys 2 c, 2 c + 1, 8 + 2 c and 9 + 2 c.
__device__ __forceinline__ int key_at(int place) { return place % 4 / 2 * 8 + place / 4 * 2 + place % 2; }

/// [entries, heads, keys, dim] of bytes, as they lie, to [entries, heads, dim, pitch] with the keys of each 16 in the order of key_at; zeros behind the
/// last key.  128 keys by 64 columns at a time, by 256 threads.
__global__ void __launch_bounds__(256, 2) transpose_values(const unsigned char* v, unsigned char* target, int64_t tiles, int key_tiles, int column_tiles, int heads, int keys,
                                                        int dim, int64_t pitch, int64_t entry_step, int64_t head_step, int64_t row_step, int64_t column_step, bool words) {
  __shared__ uint32_t tile[128][17];
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t at = blockIdx.x; at < tiles; at += gridDim.x) {
    const int key0 = static_cast<int>(at % key_tiles) * 128, column0 = static_cast<int>(at / key_tiles % column_tiles) * 64;
    const int64_t head = at / key_tiles / column_tiles;
    const unsigned char* source = v + head / heads * entry_step + head % heads * head_step;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int key = key0 + i * 16 + thread / 16, column = column0 + thread % 16 * 4;
      uint32_t word = 0;
      if (key < keys && column < dim) {
        const unsigned char* from = source + key * row_step + column * column_step;
        if (words) {
          word = __ldg(reinterpret_cast<const uint32_t*>(from));
        } else {
          for (int b = 0; b < 4 && column + b < dim; ++b) word |= static_cast<uint32_t>(__ldg(from + b * column_step)) << 8 * b;
        }
      }
      tile[i * 16 + thread / 16][thread % 16] = word;
    }
    __syncthreads();
    // eight places of four columns: words of four columns become words of four keys
    const int eight = thread % 16, four = thread / 16;
    uint32_t made[4][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = tile[eight / 2 * 16 + key_at(eight % 2 * 8 + half * 4 + i)][four];
      const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), low23 = __byte_perm(w[2], w[3], 0x5140);
      const uint32_t high01 = __byte_perm(w[0], w[1], 0x7362), high23 = __byte_perm(w[2], w[3], 0x7362);
      made[0][half] = __byte_perm(low01, low23, 0x5410);
      made[1][half] = __byte_perm(low01, low23, 0x7632);
      made[2][half] = __byte_perm(high01, high23, 0x5410);
      made[3][half] = __byte_perm(high01, high23, 0x7632);
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int column = column0 + four * 4 + b, key = key0 + eight * 8;
      if (column < dim && key < pitch) *reinterpret_cast<uint2*>(target + (head * dim + column) * pitch + key) = make_uint2(made[b][0], made[b][1]);
    }
    __syncthreads();
  }
}

/// The rings of attention's forward pass, and sums that left the tensor core.
template <typename S>
struct Fp8Shared : Shared<S> {
  float* sums;
  __device__ __forceinline__ explicit Fp8Shared(unsigned char* raw)
      : Shared<S>(raw + S::kSumsBytes), sums(reinterpret_cast<float*>(raw + (16 - shared_address(raw) % 16) % 16)) {}
};

template <typename S>
__device__ __forceinline__ void produce_fp8(const Fp8Shared<S>& shared, const CUtensorMap* q, const CUtensorMap* k, const CUtensorMap* v, const Fp8Call& call) {
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
    const auto load_keys = [&](int block) {
      hopper::wait(&shared.keys_empty[key.at], key.parity ^ 1);
      hopper::arrive_and_expect_bytes(&shared.keys_full[key.at], S::kKeyBytes);
#pragma unroll
      for (int i = 0; i < S::kBoxesD; ++i)
        hopper::start_box(shared.keys + key.at * S::kKeyBytes + i * S::kKeyBoxBytes, k, i * S::kBoxD, block * S::kBlockN, shared_head, entry, &shared.keys_full[key.at]);
      key.advance();
    };
    const auto load_values = [&](int block) {
      hopper::wait(&shared.values_empty[value.at], value.parity ^ 1);
      hopper::arrive_and_expect_bytes(&shared.values_full[value.at], S::kValueBytes);
#pragma unroll
      for (int i = 0; i < S::kBoxesN; ++i)
        hopper::start_box(shared.values + value.at * S::kValueBytes + i * S::kValueBoxBytes, v, block * S::kBlockN + i * S::kBoxN, 0, shared_head, entry,
                          &shared.values_full[value.at]);
      value.advance();
    };
    hopper::wait(&shared.queries_empty[query.at], query.parity ^ 1);
    hopper::arrive_and_expect_bytes(&shared.queries_full[query.at], S::kQueryBytes);
#pragma unroll
    for (int i = 0; i < S::kConsumers * S::kBoxesD; ++i)
      hopper::start_box(shared.queries + query.at * S::kQueryBytes + i * S::kQueryBoxBytes, q, i % S::kBoxesD * S::kBoxD, row0 + i / S::kBoxesD * 64, head, entry,
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

/// Scores in place become weights of up to 2^8.  `factor` of a row makes products, times the block's `scale`, exponents of 2; the largest score so far is
/// kept times that scale.  Gives what earlier sums are multiplied by.
template <int count>
__device__ __forceinline__ void weigh_fp8(float (&scores)[count], Running& running, const float (&factor)[2], float scale, float (&shrink)[2]) {
  // the largest of even and of odd columns: chains half as long
  float most[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int i = 4; i < count; ++i) most[i % 4] = fmaxf(most[i % 4], scores[i]);
  float high[2] = {fmaxf(most[0], most[1]), fmaxf(most[2], most[3])};
  float base[2], times[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 1));
    high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 2));
    const float top = fmaxf(running.top[r], high[r] * scale);
    // a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
    base[r] = top == -INFINITY ? 0.0f : __fmul_rn(top, factor[r]);
    // rounded as `base` was: 1 where there is no larger score
    shrink[r] = exp2_approximate(__fmul_rn(running.top[r], factor[r]) - base[r]);
    running.top[r] = top;
    running.total[r] *= shrink[r];
    base[r] -= kLift;
    times[r] = fmaxf(factor[r] * scale, kLeast);
  }
  if (fmaxf(fabsf(base[0]), fabsf(base[1])) > kFused) {
#pragma unroll
    for (int i = 0; i < count; ++i) scores[i] = __fmul_rn(__fmul_rn(scores[i], scale), factor[i / 2 % 2]);
    times[0] = times[1] = 1.0f;
  }
  float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < count; ++i) {
    scores[i] = exp2_approximate(fmaf(scores[i], times[i / 2 % 2], -base[i / 2 % 2]));
    parts[i % 4] += scores[i];
  }
  running.total[0] += parts[0] + parts[1];
  running.total[1] += parts[2] + parts[3];
}

template <typename S>
__device__ __forceinline__ void consume_fp8(const Fp8Shared<S>& shared, void* out, float* lse, const Fp8Call& call) {
  using Scores = hopper::Fp8Product<S::kBlockN>;
  using Values = hopper::Fp8ProductOfRegisters<S::kE>;
  const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, row_in_tile = group * 64 + thread / 32 * 16 + thread % 32 / 4;
  const uint64_t q = hopper::swizzled_operand<S::kBoxD>(shared_address(shared.queries) + group * S::kBoxesD * S::kQueryBoxBytes);
  const uint64_t k = hopper::swizzled_operand<S::kBoxD>(shared_address(shared.keys));
  const uint64_t v = hopper::swizzled_operand<S::kBoxN>(shared_address(shared.values));
  Slot<S::kStages> key, value;
  Slot<S::kQueryStages> query;
  Slot<S::kAhead> ahead;
  const auto await_turn = [&] {
    if constexpr (S::kTurns) hopper::named_barrier(1 + group, 256);
  };
  const auto give_turn = [&] {
    if constexpr (S::kTurns) hopper::arrive_at_named_barrier(1 + (group + 1) % S::kConsumers, 256);
  };
  if (group == S::kConsumers - 1) give_turn();

  float scores[S::kBlockN / 2], sums[S::kE / 2] = {};
  Pair weights[S::kBlockN / 32][4];
  const auto multiply_keys = [&] {
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < S::kD / 32; ++i) {
      constexpr int kSteps = S::kBoxD / 32;
      const uint64_t a = q + ((query.at * S::kQueryBytes + i / kSteps * S::kQueryBoxBytes + i % kSteps * 32) >> 4);
      const uint64_t b = k + ((key.at * S::kKeyBytes + i / kSteps * S::kKeyBoxBytes + i % kSteps * 32) >> 4);
      if (i == 0) Scores::begin(scores, a, b);
      else Scores::run(scores, a, b, 1);
    }
    hopper::commit_products();
  };
  const auto multiply_values = [&](bool add) {
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < S::kBlockN / 32; ++i) {
      constexpr int kSteps = S::kBoxN / 32;
      const uint64_t b = v + ((value.at * S::kValueBytes + i / kSteps * S::kValueBoxBytes + i % kSteps * 32) >> 4);
      Values::run(sums, weights[i], b, add || i > 0);
    }
    hopper::commit_products();
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < S::kBlockN / 32; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = i * 16 + j / 2 * 8 + j % 2 * 2;
        weights[i][j] = hopper::pack_four(scores[at], scores[at + 1], scores[at + 4], scores[at + 5]);
      }
    hopper::hold(weights);
  };

  int keys = call.keys;  // of the tile's entry
  int head = 0, row0 = 0, block = 0, first = 0;  // the tile at hand: its head and first row; the last block whose scores were computed, the tile's last one
  float factor[2];                             // of each row's scores: exponents of 2
  float of_keys = 1.0f;                        // the scale of the block of keys at hand
  int key_scales = 0;                          // where those of the head begin; offsets of scales fit 32 bits
  const Running fresh{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  Running running = fresh;
  // an ended tile, whose last values are still multiplied: its head and first row, and what the sums of its rows are multiplied by
  int ended_head = 0, ended_row0 = 0;
  float ended[2] = {0.0f, 0.0f};
  const auto scales_of_values = [&](int of_head) { return call.v_scale + of_head / call.heads * call.v_scale_entry + of_head % call.heads / call.group * call.v_scale_head; };
  // the logarithms of a tile's sums of weights
  const auto end = [&] {
    const int row = row0 + row_in_tile;
    const float scale = call.v_columns ? 1.0f : __ldg(scales_of_values(head));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = running.total[r];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const bool nothing = total == 0.0f;
      const float top = call.transformed ? running.top[r] : running.top[r] * factor[r];
      ended[r] = nothing ? 0.0f : scale / total;
      if (thread % 4 == 0 && row + 8 * r < call.queries)
        lse[static_cast<int64_t>(head) * call.queries + row + 8 * r] = nothing ? -INFINITY : (top + (log2f(total) - kLift)) * kLn2;
    }
    ended_head = head;
    ended_row0 = row0;
  };
  // rows of the ended tile
  const auto store = [&] {
    if (call.v_columns) {
      // a lane fetches every 32nd and asks the others: 64 loads at once would take registers that are not there
      const float* scales = scales_of_values(ended_head);
      float own[S::kE / 32];
#pragma unroll
      for (int i = 0; i < S::kE / 32; ++i) own[i] = i * 32 + thread % 32 < call.value_dim ? __ldg(scales + i * 32 + thread % 32) : 0.0f;
#pragma unroll
      for (int i = 0; i < S::kE / 2; ++i) sums[i] *= __shfl_sync(0xffffffffu, own[i / 16], i / 4 % 4 * 8 + thread % 4 * 2 + i % 2);
    }
    const int64_t place = static_cast<int64_t>(ended_head) * call.queries * call.value_dim;
    const int row = ended_row0 + row_in_tile;
    if (call.float16) store_rows(sums, ended, static_cast<half_t*>(out) + place, call, row);
    else store_rows(sums, ended, static_cast<bfloat16_t*>(out) + place, call, row);
  };
  // the next tile that sees any key; rows of those that see none are written here
  const auto take = [&] {
    while (true) {
      hopper::wait(&shared.tiles_full[ahead.at], ahead.parity);
      const int2 tile = shared.tiles[ahead.at];
      const int rows = __shfl_sync(0xffffffffu, tile.x, 0);
      head = __shfl_sync(0xffffffffu, tile.y, 0);
      if (thread % 32 == 0) hopper::arrive(&shared.tiles_empty[ahead.at]);
      ahead.advance();
      if (rows < 0) return false;
      row0 = rows * S::kBlockM;
      const int entry = head / call.heads;
      if constexpr (S::kSides) keys = __shfl_sync(0xffffffffu, keys_of<S>(call, entry), 0);
      const KeyBlocks blocks = key_blocks<S>(call, row0, keys);
      block = blocks.last;
      first = blocks.first;
      if (block >= first) {
        key_scales = static_cast<int>(entry * call.k_scale_entry + head % call.heads / call.group * call.k_scale_head);
        const float* query_scales = call.q_scale + entry * call.q_scale_entry + head % call.heads * call.q_scale_head;
        const float whole = call.k_blocks == 0 ? __ldg(call.k_scale + key_scales) : 1.0f;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = min(row0 + row_in_tile + 8 * r, call.queries - 1);
          factor[r] = (call.inner != 0.0f ? call.inner : call.factor) * (__ldg(query_scales + (call.q_block == 0 ? 0 : row / call.q_block) * call.q_scale_block) * whole);
          if (!call.transformed) factor[r] = fmaxf(factor[r], kLeast);
        }
        return true;
      }
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + row_in_tile + 8 * r;
        if (thread % 4 == 0 && row < call.queries) lse[static_cast<int64_t>(head) * call.queries + row] = -INFINITY;
      }
      const int64_t place = static_cast<int64_t>(head) * call.queries * call.value_dim;
      if (call.float16) store_zeros(static_cast<half_t*>(out) + place, call, row0 + row_in_tile);
      else store_zeros(static_cast<bfloat16_t*>(out) + place, call, row0 + row_in_tile);
    }
  };
  const auto fetch_scale = [&] {
    if (call.k_blocks != 0) of_keys = __ldg(call.k_scale + (key_scales + block / call.k_blocks * static_cast<int>(call.k_scale_block)));
  };
  float shrink[2];
  const auto soften = [&] {
    const int top = row0 + group * 64 + call.shift, clear_to = min(keys, top + call.right + 1), clear_from = top + 63 - call.left;
    if (call.transformed) {
#pragma unroll
      for (int i = 0; i < S::kBlockN / 2; ++i) scores[i] *= factor[i / 2 % 2] * of_keys;
      if (call.inner != 0.0f) {
        // tanh(x) = 1 - 2 / (exp(2x) + 1): right at both ends, where exp is 0 or infinite
#pragma unroll
        for (int i = 0; i < S::kBlockN / 2; ++i)
          scores[i] = call.factor * (1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(2.0f * kLog2E * scores[i])));
      }
    }
    if ((block + 1) * S::kBlockN > clear_to || block * S::kBlockN < clear_from) mask(scores, call, keys, block * S::kBlockN, row0 + row_in_tile + call.shift);
    const float one[2] = {call.transformed ? 1.0f : factor[0], call.transformed ? 1.0f : factor[1]};
    weigh_fp8(scores, running, one, call.transformed ? 1.0f : of_keys, shrink);
  };
  const auto release_keys = [&] {
    if (thread == 0) hopper::arrive(&shared.keys_empty[key.at]);
    key.advance();
    if (block > first) return;
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
  fetch_scale();
  hopper::wait_for_products<0>();
  hopper::hold(scores);
  release_keys();
  soften();
  // ends: the values that are multiplied are a tile's last; add: there are sums in the tensor core that their product joins
  bool ends = false, add = false, multiplied = false;
  // sums that left the tensor core are each thread's own, `decay` times what they stand for now; `added` blocks of a tile have been, or are, multiplied
  int added = 0;
  float decay[2] = {1.0f, 1.0f};
  const auto carry_on = [&](bool back) {
    float4* const kept = reinterpret_cast<float4*>(shared.sums) + group * (16 * S::kE) + thread;
    const bool moved = added > S::kEvery;
#pragma unroll
    for (int i = 0; i < S::kE / 8; ++i) {
      float all[4] = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
      if (moved) {
        const float4 before = kept[i * 128];
        all[0] = fmaf(before.x, decay[0], all[0]);
        all[1] = fmaf(before.y, decay[0], all[1]);
        all[2] = fmaf(before.z, decay[1], all[2]);
        all[3] = fmaf(before.w, decay[1], all[3]);
      }
      if (back) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i * 4 + j] = all[j];
      } else {
        kept[i * 128] = make_float4(all[0], all[1], all[2], all[3]);
      }
    }
  };
  // sums of an ended tile are written; those of one that goes on are made to fit its largest score so far
  const auto settle = [&] {
    add = true;
    if (ends) {
      if (S::kEvery && added > S::kEvery) carry_on(true);
      store();
      add = false;
      added = 0;
    } else if (S::kEvery && added % (S::kEvery ? S::kEvery : 1) == 0) {
      carry_on(false);
      add = false;
      decay[0] = shrink[0];
      decay[1] = shrink[1];
    } else if (!__all_sync(0xffffffffu, shrink[0] == 1.0f && shrink[1] == 1.0f)) {
      // most blocks of a long row have no new largest score for any row of a warp
      decay[0] *= shrink[0];
      decay[1] *= shrink[1];
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
    hopper::hold(scores);
    pack();
    if (multiplied) settle();
    ++added;
    ends = block == first;
    if (!ends) {
      --block;
    } else {
      end();
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
    fetch_scale();
    hopper::wait_for_products<1>();
    hopper::hold(scores);
    release_keys();
    if (ends) running = fresh;
    soften();
  }
  hopper::wait(&shared.values_full[value.at], value.parity);
  hopper::hold(sums);
  multiply_values(add);
  hopper::wait_for_products<0>();
  hopper::hold(sums);
  release_values();
  if (S::kEvery && added > S::kEvery) carry_on(true);
  store();
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attend_wgmma_fp8(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, void* out, float* lse,
                     const __grid_constant__ Fp8Call call) {
  OPFORGE_DYNAMIC_SHARED(unsigned char, raw);
  const Fp8Shared<S> shared(raw);
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
    if (threadIdx.x == 0) produce_fp8<S>(shared, &q, &k, &v, call);
  } else {
    hopper::grow_registers<S::kMathRegisters>();
    consume_fp8<S>(shared, out, lse, call);
  }
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_WGMMA_FP8_H_
