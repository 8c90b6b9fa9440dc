// opforge/attention/wgmma_backward_wide.h - attention's gradients on Hopper for head dimensions beyond 128: see attention/wgmma_backward.h.
//
// The gradient of 64 keys or of 64 values takes half of a warpgroup's registers where there are 256 dimensions, so each has a warpgroup of its own. Both
// compute the scores. The first goes on to the slopes and adds up the gradient of the keys; the second adds up the gradient of the values, and that of
// the queries, from the slopes that the first leaves in shared memory. Three products each: six in all, and no weights change hands.
// sm_90a alone.
//
// source    Shah et al., FlashAttention-3, arXiv:2407.08608; PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg, red
#ifndef OPFORGE_ATTENTION_WGMMA_BACKWARD_WIDE_H_
#define OPFORGE_ATTENTION_WGMMA_BACKWARD_WIDE_H_

#include "opforge/attention/wgmma_backward.h"

namespace opforge {
namespace hopper {

#define OPFORGE_LEFT192 "{%96, %97, %98, %99}, %100, add, 1, 1, %102;\n}"
#define OPFORGE_ADD192 "%101"
OPFORGE_PRODUCTS_OF_REGISTERS(192)

}  // namespace hopper

namespace attention {

/// Sizes of a kernel: 64 keys against 64 queries at a time. The rest is BackwardShape's.
template <typename T, int kD_, int kE_, int kStages_, bool kBent_, bool kOrdered_>
struct WideBackwardShape {
  using Element = T;
  static constexpr int kD = kD_, kE = kE_, kM = 64, kN = 64, kStages = kStages_;
  static constexpr bool kBent = kBent_, kOrdered = kOrdered_, kWide = true;
  static constexpr int kGroups = 2, kThreads = 128 * (kGroups + 1);
  static constexpr int kBoxesD = kD / kBox, kBoxesE = kE / kBox;
  static constexpr int kKeyBoxBytes = kN * 128, kQueryBoxBytes = kM * 128;
  static constexpr int kKeyBytes = kBoxesD * kKeyBoxBytes, kValueBytes = kBoxesE * kKeyBoxBytes;
  static constexpr int kQueryBytes = kBoxesD * kQueryBoxBytes, kArrivingBytes = kBoxesE * kQueryBoxBytes, kLineBytes = kM * 4;
  // two: slopes of a block are read while those of the next are written
  static constexpr int kSlopeBytes = kN * kM * 2, kSlopeStages = 2;
  static constexpr int kSharedBytes = 1024 + kKeyBytes + kValueBytes + kStages * (kQueryBytes + kArrivingBytes + 2 * kLineBytes) +
                                      kSlopeStages * kSlopeBytes + 8 * (1 + 4 * kStages) + 8 + 8 * 2 * kSlopeStages;
  static constexpr int kCopyRegisters = 24, kMathRegisters = 240;
  static constexpr int kWarps = 4;  // of a warpgroup: each says for itself that it has read
};

template <typename S>
struct WideShared : BackwardShared<S> {
  Barrier *slopes_full, *slopes_empty;

  __device__ __forceinline__ explicit WideShared(unsigned char* raw) : BackwardShared<S>(raw) {
    slopes_full = reinterpret_cast<Barrier*>(this->tile + 2);
    slopes_empty = slopes_full + S::kSlopeStages;
  }
};

/// A warp has done with what a barrier guards.
__device__ __forceinline__ void warp_arrives(Barrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) hopper::arrive(barrier);
}

/// Scores of 64 keys with 64 queries become weights; kSteep: times the derivative of the cap, as the slopes want them.
template <typename S, bool kSteep>
__device__ __forceinline__ void weigh(float (&own)[32], const BackwardCall& call, const float* lse, float slope, int key0, int keys, int row0) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const float position = static_cast<float>(key0 + row - call.shift - lane % 4 * 2 - row0);
  lse += lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    float score = own[i], bend = 1.0f;
    if (S::kBent && call.inner != 0.0f) {
      // tanh(x) = 1 - 2 / (exp(2x) + 1): right at both ends, where exp is 0 or infinite
      score = 1.0f - 2.0f * reciprocal_approximate(1.0f + exp2_approximate(2.0f * kLog2E * call.inner * score));
      if (kSteep) bend = 1.0f - score * score;
    }
    float exponent = fmaf(score, call.factor, -lse[i / 4 * 8 + i % 2]);
    if (S::kBent && slope != 0.0f) exponent -= slope * fabsf(position + static_cast<float>(i / 2 % 2 * 8 - i / 4 * 8 - i % 2));
    own[i] = exp2_approximate(exponent);
    if (S::kBent && kSteep) own[i] *= bend;
  }
  const bool edge = key0 + 63 > row0 + call.shift + call.right || key0 < row0 + 63 + call.shift - call.left || key0 + 64 > keys;
  if (!edge) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = key0 + row + 8 * r, first = row0 + lane % 4 * 2;
    const int least = key - call.shift - call.right - first, most = key < keys ? key - call.shift + call.left - first : -1;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = i / 4 * 8 + i % 2;
      if (i / 2 % 2 == r && (at < least || at > most)) own[i] = 0.0f;
    }
  }
}

/// Starts the products of the tile's keys with a block of queries, whose rows are `queries`; of values with what arrives likewise.
template <typename S, int kDim, int kQueryBytes>
__device__ __forceinline__ void start_scores(float (&sums)[32], uint64_t rows, uint64_t columns, int stage) {
  using Scores = hopper::Product<typename S::Element, 64, false, false>;
  forget(sums);
  hopper::fence_before_products();
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i)
    Scores::run(sums, rows + ((i / 4 * S::kKeyBoxBytes + i % 4 * 32) >> 4), columns + ((stage * kQueryBytes + i / 4 * S::kQueryBoxBytes + i % 4 * 32) >> 4), i > 0);
  hopper::commit_products();
}

template <typename S>
__device__ __forceinline__ float slope_of(const BackwardCall& call, const KeyTile& tile, int member) {
  return S::kBent && call.slopes != nullptr ? __ldg(call.slopes + (tile.head * call.group + member) * call.slopes_step) * kLog2E : 0.0f;
}

/// The first warpgroup that multiplies: slopes, and the gradient of the keys.
template <typename S>
__device__ __forceinline__ void add_keys(const WideShared<S>& shared, typename S::Element* dk, const BackwardCall& call, const KeyTile& tile, int keys, int2 blocks) {
  using T = typename S::Element;
  using Keys = hopper::ProductOfRegisters<T, S::kD, true>;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32, row = thread / 32 * 16 + lane / 4;
  const uint64_t k = hopper::operand(shared_address(shared.keys), 0, 1024), v = hopper::operand(shared_address(shared.values), 0, 1024);
  const uint64_t q = hopper::operand(shared_address(shared.queries), S::kQueryBoxBytes, 1024);
  const uint64_t g = hopper::operand(shared_address(shared.arriving), S::kQueryBoxBytes, 1024);
  // where a lane's row of eight slopes begins; its bytes are swizzled
  const uint32_t own_slopes = (thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8) * 128;
  float sum[S::kD / 2] = {}, scores[32], inner[32];
  Pair steep[4][4];
  Slot<S::kStages> slot;
  Slot<S::kSlopeStages> slopes;
  if (blocks.y > blocks.x) {
    hopper::wait(shared.keys_full, 0);
    int block = blocks.x, member = 0;
    bool began = false;
#pragma unroll 1
    while (true) {
      hopper::wait(&shared.queries_full[slot.at], slot.parity);
      start_scores<S, S::kD, S::kQueryBytes>(scores, k, q, slot.at);
      hopper::wait(&shared.arriving_full[slot.at], slot.parity);
      start_scores<S, S::kE, S::kArrivingBytes>(inner, v, g, slot.at);
      hopper::wait_for_products<1>();
      hopper::hold(scores);
      // the block before has given its gradient: its queries are done with
      if (began) warp_arrives(&shared.queries_empty[(slot.at + S::kStages - 1) % S::kStages]);
      weigh<S, true>(scores, call, shared.lse + slot.at * S::kM, slope_of<S>(call, tile, member), tile.key0, keys, block * S::kM);
      hopper::wait_for_products<0>();
      hopper::hold(inner);
      hopper::hold(sum);
      const float* middle = shared.middle + slot.at * S::kM + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 32; ++i) inner[i] = scores[i] * (inner[i] - middle[i / 4 * 8 + i % 2]);
      hopper::wait(&shared.slopes_empty[slopes.at], slopes.parity ^ 1);
      unsigned char* box = shared.slopes + slopes.at * S::kSlopeBytes;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        Pair(&own)[4] = steep[c];
#pragma unroll
        for (int j = 0; j < 4; ++j) own[j] = hopper::pack_two<T>(inner[c * 8 + j * 2], inner[c * 8 + j * 2 + 1]);
        hopper::store_matrices(box + own_slopes + ((c * 2 + lane / 16) ^ (lane % 8)) * 16, own[0], own[1], own[2], own[3]);
      }
      // what was written is seen by the other warpgroup's products
      hopper::fence_async_proxy();
      warp_arrives(&shared.slopes_full[slopes.at]);
      warp_arrives(&shared.arriving_empty[slot.at]);
      hopper::hold(steep);
      hopper::hold(sum);
      hopper::fence_before_products();
#pragma unroll
      for (int c = 0; c < 4; ++c) Keys::run(sum, steep[c], q + ((slot.at * S::kQueryBytes + c * 16 * 128) >> 4), 1);
      hopper::commit_products();
      began = true;
      slopes.advance();
      slot.advance();
      if (++block == blocks.y) {
        block = blocks.x;
        if (++member == call.group) break;
      }
    }
    hopper::wait_for_products<0>();
    hopper::hold(sum);
  }
  const int64_t line = static_cast<int64_t>(tile.entry * call.kv_heads + tile.head) * call.keys;
  store_gradient<T>(sum, call.scale, dk + line * call.head_dim, call.keys, call.head_dim, call.whole_keys, tile.key0 + row);
}

/// The second: the gradient of the values, and that of the queries, a block after the first has left its slopes.
template <typename S>
__device__ __forceinline__ void add_values(const WideShared<S>& shared, typename S::Element* dv, const BackwardCall& call, const KeyTile& tile, int keys, int2 blocks) {
  using T = typename S::Element;
  using Values = hopper::ProductOfRegisters<T, S::kE, true>;
  using Queries = hopper::Product<T, 64, true, true>;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32, row = thread / 32 * 16 + lane / 4;
  const uint64_t k = hopper::operand(shared_address(shared.keys), 0, 1024), steep = hopper::operand(shared_address(shared.slopes), 0, 1024);
  const uint64_t q = hopper::operand(shared_address(shared.queries), S::kQueryBoxBytes, 1024);
  const uint64_t g = hopper::operand(shared_address(shared.arriving), S::kQueryBoxBytes, 1024);
  float sum[S::kE / 2] = {}, scores[32], square[32];
  Pair weights[4][4];
  Slot<S::kStages> slot;
  Slot<S::kSlopeStages> slopes;
  // of a block whose slopes are there: its part of the gradient of the queries, 64 of their dimensions at a time
  const auto add_queries = [&](int block, int member) {
    hopper::wait(&shared.slopes_full[slopes.at], slopes.parity);
    const int first = square_of<S>(call, tile, block, member, 0);
    if constexpr (S::kOrdered) {
      // blocks of keys before this one that see any of these queries have all added, or have yet to
      if (lane == 0) await_turn(call.turns + first, turn_of<S>(call, tile, block));
      __syncwarp();
    }
#pragma unroll 1
    for (int box = 0; box < S::kBoxesD; ++box) {
      forget(square);
      hopper::fence_before_products();
#pragma unroll
      for (int i = 0; i < S::kN / 16; ++i)
        Queries::run(square, steep + ((slopes.at * S::kSlopeBytes + i * 16 * 128) >> 4), k + ((box * S::kKeyBoxBytes + i * 16 * 128) >> 4), i > 0);
      hopper::commit_products();
      hopper::wait_for_products<0>();
      hopper::hold(square);
      if (box == S::kBoxesD - 1) warp_arrives(&shared.slopes_empty[slopes.at]);
      float* target = call.sums + static_cast<int64_t>(first + box) * 4096 + thread * 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) add_four(target + i * 512, square[i * 4], square[i * 4 + 1], square[i * 4 + 2], square[i * 4 + 3]);
    }
    // a warp that does nothing else tells the next block of keys: it waits until what was added stands
    if constexpr (S::kOrdered) hopper::named_barrier(2, 160);
    slopes.advance();
  };
  if (blocks.y > blocks.x) {
    hopper::wait(shared.keys_full, 0);
    int block = blocks.x, member = 0, last_block = -1, last_member = 0;
#pragma unroll 1
    while (true) {
      hopper::wait(&shared.queries_full[slot.at], slot.parity);
      start_scores<S, S::kD, S::kQueryBytes>(scores, k, q, slot.at);
      if (last_block >= 0) add_queries(last_block, last_member);
      hopper::wait_for_products<0>();
      hopper::hold(scores);
      hopper::hold(sum);
      // the values' product of the block before was waited for with these
      if (last_block >= 0) warp_arrives(&shared.arriving_empty[(slot.at + S::kStages - 1) % S::kStages]);
      weigh<S, false>(scores, call, shared.lse + slot.at * S::kM, slope_of<S>(call, tile, member), tile.key0, keys, block * S::kM);
      warp_arrives(&shared.queries_empty[slot.at]);
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j) weights[c][j] = hopper::pack_two<T>(scores[c * 8 + j * 2], scores[c * 8 + j * 2 + 1]);
      hopper::hold(weights);
      hopper::hold(sum);
      hopper::wait(&shared.arriving_full[slot.at], slot.parity);
      hopper::fence_before_products();
#pragma unroll
      for (int c = 0; c < 4; ++c) Values::run(sum, weights[c], g + ((slot.at * S::kArrivingBytes + c * 16 * 128) >> 4), 1);
      hopper::commit_products();
      last_block = block, last_member = member;
      slot.advance();
      if (++block == blocks.y) {
        block = blocks.x;
        if (++member == call.group) break;
      }
    }
    add_queries(last_block, last_member);
    hopper::wait_for_products<0>();
    hopper::hold(sum);
  }
  const int64_t line = static_cast<int64_t>(tile.entry * call.kv_heads + tile.head) * call.keys;
  store_gradient<T>(sum, 1.0f, dv + line * call.value_dim, call.keys, call.value_dim, call.whole_values, tile.key0 + row);
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    differentiate_wgmma_wide(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                             const __grid_constant__ CUtensorMap dout, typename S::Element* dk, typename S::Element* dv, const __grid_constant__ BackwardCall call) {
  extern __shared__ unsigned char raw[];
  const WideShared<S> shared(raw);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&q);
    hopper::prefetch_map(&k);
    hopper::prefetch_map(&v);
    hopper::prefetch_map(&dout);
    hopper::init_barrier(shared.keys_full, 1);
    for (int i = 0; i < S::kStages; ++i) {
      hopper::init_barrier(&shared.queries_full[i], 1);
      hopper::init_barrier(&shared.queries_empty[i], S::kGroups * S::kWarps);
      hopper::init_barrier(&shared.arriving_full[i], 1);
      hopper::init_barrier(&shared.arriving_empty[i], S::kGroups * S::kWarps);
    }
    for (int i = 0; i < S::kSlopeStages; ++i) {
      hopper::init_barrier(&shared.slopes_full[i], S::kWarps);
      hopper::init_barrier(&shared.slopes_empty[i], S::kWarps);
    }
    hopper::fence_barrier_init();
    // by number of taking: whoever waits for a block of keys knows that it has begun
    if constexpr (S::kOrdered) *shared.tile = atomicAdd(call.taken, 1);
  }
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const Work<S> work(call, S::kOrdered ? __shfl_sync(0xffffffffu, *shared.tile, 0) : static_cast<int>(blockIdx.x));
  if (group == 0) {
    hopper::shrink_registers<S::kCopyRegisters>();
    if (threadIdx.x == 0 && work.blocks.y > work.blocks.x) produce_queries<S>(shared, &q, &k, &v, &dout, call, work.tile, work.blocks);
    if (S::kOrdered && threadIdx.x / 32 == 1) pass_turns<S>(call, work.tile, work.blocks, 0);
  } else {
    hopper::grow_registers<S::kMathRegisters>();
    if (group == 1) add_keys<S>(shared, dk, call, work.tile, work.keys, work.blocks);
    else add_values<S>(shared, dv, call, work.tile, work.keys, work.blocks);
  }
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_WGMMA_BACKWARD_WIDE_H_
