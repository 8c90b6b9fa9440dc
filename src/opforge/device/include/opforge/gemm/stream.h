// opforge/gemm/stream.h - a product of few rows on Hopper: the wide matrix streams by once, from memory to the tensor cores.
//
// c (m x n) = a (m x k) b (k x n) with m <= 128.  What counts is how fast b comes in.  wgmma's first side is never shorter than 64,
// so the sides are exchanged: 64 columns of c are its rows, and 8 to 128 rows of c its columns.  A warpgroup holds the sums of 64
// columns.  One warp keeps a pipeline of steps full by TMA.  Blocks of a cluster take parts of k; each leaves its sums in shared memory,
// reads the others' sums of its share of the columns there, and adds them up in the order of the parts: the same bits at every call,
// no second kernel, no atomics.  With many rows a is as large as b in every block: neighbours in the columns can share it, each
// loading some of its rows for all (multicast).  sm_90a alone.
#ifndef OPFORGE_GEMM_STREAM_H_
#define OPFORGE_GEMM_STREAM_H_

#include <algorithm>

#include "opforge/gemm/wgmma/launch.h"
#include "opforge/arch/groups.h"

namespace opforge {

namespace hopper {
// products with 8, 16 and 32 columns, for few rows
#define OPFORGE_TAIL8_0 "%4"
#define OPFORGE_TAIL8_1 "%5"
#define OPFORGE_TAIL8_2 "%6"
#define OPFORGE_TAIL8_3 "%7"
#define OPFORGE_TAIL8_4 "%8"
#define OPFORGE_TAIL8(i) OPFORGE_TAIL8_##i
#define OPFORGE_TAIL16_0 "%8"
#define OPFORGE_TAIL16_1 "%9"
#define OPFORGE_TAIL16_2 "%10"
#define OPFORGE_TAIL16_3 "%11"
#define OPFORGE_TAIL16_4 "%12"
#define OPFORGE_TAIL16(i) OPFORGE_TAIL16_##i
#define OPFORGE_TAIL32_0 "%16"
#define OPFORGE_TAIL32_1 "%17"
#define OPFORGE_TAIL32_2 "%18"
#define OPFORGE_TAIL32_3 "%19"
#define OPFORGE_TAIL32_4 "%20"
#define OPFORGE_TAIL32(i) OPFORGE_TAIL32_##i
#define OPFORGE_REGISTERS8 "%0, %1, %2, %3"
#define OPFORGE_REGISTERS16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OPFORGE_REGISTERS32 OPFORGE_R0
#define OPFORGE_SUMS8 "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
#define OPFORGE_SUMS_OF_16 OPFORGE_SUMS8, "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7])
#define OPFORGE_SUMS32 OPFORGE_SUMS16(0)
OPFORGE_PRODUCT(half_t, "f16", 8, OPFORGE_REGISTERS8, OPFORGE_TAIL8, OPFORGE_SUMS8)
OPFORGE_PRODUCT(bfloat16_t, "bf16", 8, OPFORGE_REGISTERS8, OPFORGE_TAIL8, OPFORGE_SUMS8)
OPFORGE_PRODUCT8(float8_e4m3_t, "e4m3.e4m3", 8, OPFORGE_REGISTERS8, OPFORGE_TAIL8, OPFORGE_SUMS8)
OPFORGE_PRODUCT(half_t, "f16", 16, OPFORGE_REGISTERS16, OPFORGE_TAIL16, OPFORGE_SUMS_OF_16)
OPFORGE_PRODUCT(bfloat16_t, "bf16", 16, OPFORGE_REGISTERS16, OPFORGE_TAIL16, OPFORGE_SUMS_OF_16)
OPFORGE_PRODUCT8(float8_e4m3_t, "e4m3.e4m3", 16, OPFORGE_REGISTERS16, OPFORGE_TAIL16, OPFORGE_SUMS_OF_16)
OPFORGE_PRODUCT(half_t, "f16", 32, OPFORGE_REGISTERS32, OPFORGE_TAIL32, OPFORGE_SUMS32)
OPFORGE_PRODUCT(bfloat16_t, "bf16", 32, OPFORGE_REGISTERS32, OPFORGE_TAIL32, OPFORGE_SUMS32)
OPFORGE_PRODUCT8(float8_e4m3_t, "e4m3.e4m3", 32, OPFORGE_REGISTERS32, OPFORGE_TAIL32, OPFORGE_SUMS32)

/// How the second-level cache treats what is read once: it is the first to go.
__device__ __forceinline__ uint64_t drop_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// start_box with such a policy.
__device__ __forceinline__ void start_box_dropped_first(void* target, const CUtensorMap* map, int inner, int outer, Barrier* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
          shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(inner), "r"(outer), "l"(policy)
      : "memory");
}
/// Asks the second-level cache for what lies there.
__device__ __forceinline__ void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }
}  // namespace hopper

namespace stream {

using hopper::Barrier;
using hopper::kBox;
using hopper::kBoxBytes;

constexpr int kMaxRows = 128, kMaxParts = 8, kMaxBlocks = 8;  // rows of c, parts of k, blocks of a cluster

/// Everything that follows from the elements (16 or 8 bits) and the sizes.
///
/// columns     of c in a block           scaled   a step's scales come through the pipeline too
/// rows        of c: 8, 16, 32, 64, 128  overlap  blocks may start while the kernel before runs
/// deep        128 bytes of terms in a step: 1, or 2 (16-bit elements alone)
/// behind      a step's room is handed back when the products of the next are under way, not when its own have ended
/// once        b is the first that the second-level cache drops
template <typename T, int columns, int rows, bool scaled, bool overlap, int deep = 1, bool behind = true, bool once = false>
struct Shape {
  using Element = T;
  static constexpr int kDeep = deep, kDepth = deep * 128 / sizeof(T);  // terms per step
  static constexpr int kColumns = columns, kRows = rows, kWarpgroups = columns / kBox;
  // a of so many rows is worth sharing, in whole groups of eight rows
  static constexpr bool kShares = rows >= 64;
  static constexpr int kThreads = 128 * kWarpgroups + 32;
  static constexpr int kFewBytes = rows * 128, kStageBytes = deep * (columns * 128 + kFewBytes);
  // the sums of a block: those of a row side by side, rows so far apart that the lanes of a warp write to different banks
  static constexpr int kPitch = columns + 4, kSumBytes = rows * kPitch * static_cast<int>(sizeof(float));
  static constexpr bool kScaled = scaled, kOverlap = overlap, kBehind = behind, kOnce = once;
  static constexpr int kScales = scaled ? rows + (kWarpgroups + 1) / 2 * 2 : 0;  // of a step: one for each row, one for 64 columns; an even number
  // the pipeline and behind it each step's scales and barriers; from the pipeline's start at a multiple of 1024
  __host__ __device__ static constexpr int pipeline_bytes(int stages) { return stages * kStageBytes > kSumBytes ? stages * kStageBytes : kSumBytes; }
  static constexpr int shared_bytes(int stages) {
    return pipeline_bytes(stages) + stages * (kScales * static_cast<int>(sizeof(float)) + 2 * static_cast<int>(sizeof(Barrier))) + 1024;
  }
  // two blocks on a multiprocessor where registers allow it: the next kernel's may wait there, if both pipelines have room
  static constexpr int kBlocks = 2 * kThreads * (rows + 56) <= 65536 ? 2 : 1;
  static_assert(deep == 1 || sizeof(T) == 2, "8-bit products move their sums after every 128 terms");
};

/// What is chosen for a launch.
///
/// steps    of a part of k; the first `more` parts have one more
/// sharers  blocks of neighbouring columns that share a: a power of two
/// stages   steps that a pipeline holds
struct Plan {
  int steps, more, sharers, stages;
};

/// What a caller wants: parts of k, sharers of a, KB of the pipeline; 0 where the shape may decide.
struct Wanted {
  int parts, sharers, pipeline;
};

/// Where c is, and how: four neighbours of a row at once where addresses allow it.
template <typename T>
struct Target {
  T* data;
  int64_t row, col;
  int m, n;
  bool fours;
};

template <typename T>
Target<T> target_of(const Matrix& c) {
  const bool fours = c.col == 1 && c.row % 4 == 0 && reinterpret_cast<uintptr_t>(c.data) % (4 * sizeof(T)) == 0;
  return {c.typed<T>(), c.row, c.col, static_cast<int>(c.rows), static_cast<int>(c.cols), fours};
}

/// Sums that stay in the tensor cores' registers from the first term to the last, stored as they are.
struct NoPromotion {
  static constexpr bool kEachStep = false, kScaled = false;
  __device__ __forceinline__ void warm(int, int) const {}
  __device__ __forceinline__ float scale(int, int) const { return 1.0f; }
  __device__ __forceinline__ float weight(int, int, int) const { return 1.0f; }
};

// Four values of a row in the shared memory of block `block` of the cluster.
__device__ __forceinline__ float4 load_in_block(const float* p, int block) {
  float4 found;
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w) : "r"(there) : "memory");
  return found;
}

// Shared memory of a block: the pipeline of steps (later the sums), the steps' scales, the barriers.
template <typename S>
struct Pipeline {
  unsigned char* tiles;
  float* scales;
  // a slot's bytes have come; nobody reads it in any block that its rows of a go to
  Barrier *full, *empty;
  int stages;

  __device__ __forceinline__ Pipeline(unsigned char* raw, int stages)
      : tiles(raw + (1024 - shared_address(raw) % 1024) % 1024),
        scales(reinterpret_cast<float*>(tiles + S::pipeline_bytes(stages))),
        full(reinterpret_cast<Barrier*>(scales + stages * S::kScales)),
        empty(full + stages),
        stages(stages) {}
};

// The blocks of a cluster that share a: `count` of them from number `first` on; this one is `own` of those.
struct Sharers {
  int count, first, own;
};

// One warp fills the pipeline with the steps from `first` to `last`: 64-column boxes of b, then the rows of a, or its share of them for all that share a.
template <typename S, bool kAlongN, typename Promotion>
__device__ __forceinline__ void produce(const Pipeline<S>& pipeline, const CUtensorMap* wide, const CUtensorMap* few, int col0, int first, int last,
                                        const Sharers& sharers, const Promotion& promote) {
  const int lane = threadIdx.x % 32;
  // boxes of 64 columns: all of a step's terms, or where these are neighbours in memory 128 bytes of them
  constexpr int kEach = kAlongN ? 1 : S::kDeep;
  const auto boxes = [&](int step, auto start) {
#pragma unroll
    for (int i = 0; i < S::kWarpgroups * kEach; ++i) {
      const int col = col0 + i / kEach * kBox, depth = step * S::kDepth + i % kEach * (S::kDepth / S::kDeep);
      kAlongN ? start(i, col, depth) : start(i, depth, col);
    }
  };
  [[maybe_unused]] const uint64_t policy = S::kOnce ? hopper::drop_first() : 0;
  if (S::kOverlap) {
    hopper::launch_dependent_kernels();
    hopper::wait_for_prior_kernels();
  }
  int slot = 0;
  uint32_t phase = 0;
  for (int step = first; step < last; ++step) {
    if (S::kScaled || lane == 0) {
      hopper::wait(&pipeline.empty[slot], phase ^ 1);
      Barrier* full = &pipeline.full[slot];
      if (lane == 0) {
        hopper::arrive_and_expect_bytes(full, S::kStageBytes);
        unsigned char* tiles = pipeline.tiles + slot * S::kStageBytes;
        boxes(step, [&](int i, int inner, int outer) {
          unsigned char* target = tiles + i * (S::kDeep / kEach) * kBoxBytes;
          if constexpr (S::kOnce) {
            hopper::start_box_dropped_first(target, wide, inner, outer, full, policy);
          } else {
            hopper::start_box(target, wide, inner, outer, full);
          }
        });
        unsigned char* few_tiles = tiles + S::kWarpgroups * S::kDeep * kBoxBytes;
#pragma unroll
        for (int i = 0; i < S::kDeep; ++i) {
          const int depth = step * S::kDepth + i * (S::kDepth / S::kDeep);
          if (sharers.count == 1) {
            hopper::start_box(few_tiles + i * S::kFewBytes, few, depth, 0, full);
          } else {
            // each block's barrier hears of all rows, which come from all sharers
            const int rows = S::kRows >> (__ffs(sharers.count) - 1), row = sharers.own * rows;
            const auto blocks = static_cast<uint16_t>(((1 << sharers.count) - 1) << sharers.first);
            hopper::start_box_multicast(blocks, few_tiles + i * S::kFewBytes + row * 128, few, depth, row, full);
          }
        }
      }
      if constexpr (S::kScaled) {
        float* scales = pipeline.scales + slot * S::kScales;
        for (int i = lane; i < S::kRows; i += 32) hopper::start_float(scales + i, promote.of_row(i, step));
        if (lane < S::kWarpgroups) hopper::start_float(scales + S::kRows + lane, promote.of_column(col0 + lane * kBox, step));
        hopper::arrive_when_copied(full);
      }
    }
    if (++slot == pipeline.stages) {
      slot = 0;
      phase ^= 1;
    }
  }
  __syncwarp();
}

// A warpgroup multiplies its 64 columns of every step and leaves its sums where the pipeline was.
template <typename S, bool kAlongN, typename Promotion>
__device__ __forceinline__ void consume(const Pipeline<S>& pipeline, int steps, int group, const Sharers& sharers) {
  using T = typename S::Element;
  using Product = hopper::Product<T, S::kRows, kAlongN, false>;
  constexpr int kSums = S::kRows / 2;
  // one instruction's terms further in a box: 16 rows of 128 bytes where columns are neighbours, 32 bytes where terms are
  constexpr uint32_t kStepWide = (kAlongN ? 16 * 128 : 32) >> 4, kStepFew = 32 >> 4;
  const int thread = threadIdx.x % 128;
  const uint32_t tiles = shared_address(pipeline.tiles);
  const uint64_t first_wide = hopper::operand(tiles + group * S::kDeep * kBoxBytes, kBoxBytes, 1024);
  const uint64_t first_few = hopper::operand(tiles + S::kWarpgroups * S::kDeep * kBoxBytes, kBoxBytes, 1024);
  float sums[kSums];
  float totals[Promotion::kEachStep ? kSums : 1];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
#pragma unroll
  for (float& total : totals) total = 0.0f;
  // Told of a slot are only those who will fill it once more: nothing is on its way to a block that may have ended.
  const auto release_slot = [&](int step, int slot) {
    if (step + pipeline.stages >= steps) return;
    if (sharers.count > 1) {
      if (thread < sharers.count) hopper::arrive_at(&pipeline.empty[slot], sharers.first + thread);
    } else if (thread == 0) {
      hopper::arrive(&pipeline.empty[slot]);
    }
  };
  int slot = 0, before = 0;
  uint32_t phase = 0;
  for (int step = 0; step < steps; ++step) {
    hopper::wait(&pipeline.full[slot], phase);
    const uint64_t at = static_cast<uint64_t>(slot * (S::kStageBytes >> 4));
    hopper::hold(sums);
    hopper::fence_before_products();
#pragma unroll
    for (int i = 0; i < 4 * S::kDeep; ++i)
      Product::run(sums, first_wide + at + i / 4 * (kBoxBytes >> 4) + i % 4 * kStepWide, first_few + at + i / 4 * (S::kFewBytes >> 4) + i % 4 * kStepFew,
                   (!Promotion::kEachStep && step > 0) || i > 0);
    hopper::commit_products();
    hopper::hold(sums);
    if constexpr (Promotion::kEachStep) {
      // 128 rows have their scales in two halves, because sums, totals and all scales are more registers than a thread has
      constexpr int kSplitN = S::kScaled && S::kRows == kMaxRows ? 2 : 1, kGroups = S::kRows / 8 / kSplitN;
      [[maybe_unused]] float2 rows[S::kScaled ? kGroups : 1];
      [[maybe_unused]] float by_column = 1.0f;
      [[maybe_unused]] const float* scales = pipeline.scales + slot * S::kScales;
      const auto read_scales = [&](int half) {
        if constexpr (S::kScaled) {
#pragma unroll
          for (int i = 0; i < kGroups; ++i) rows[i] = *reinterpret_cast<const float2*>(scales + (half * kGroups + i) * 8 + thread % 4 * 2);
        }
      };
      if constexpr (S::kScaled) by_column = scales[S::kRows + group];
      read_scales(0);
      hopper::wait_for_products<0>();
      hopper::hold(sums);
#pragma unroll
      for (int half = 0; half < kSplitN; ++half) {
        if (half > 0) read_scales(half);
        if (half == kSplitN - 1) {
          if (S::kScaled) hopper::named_barrier(1 + group, 128);  // every thread has its scales
          release_slot(step, slot);
        }
#pragma unroll
        for (int j = 0; j < kGroups * 4; ++j) {
          const int i = half * kGroups * 4 + j;
          if constexpr (S::kScaled) {
            totals[i] = fmaf(sums[i], by_column * (j % 2 == 0 ? rows[j / 4].x : rows[j / 4].y), totals[i]);
          } else {
            totals[i] += sums[i];
          }
        }
      }
    } else if constexpr (S::kBehind) {
      // the step before is done when only this one is under way
      hopper::wait_for_products<1>();
      if (step > 0) release_slot(step - 1, before);
      before = slot;
    } else {
      hopper::wait_for_products<0>();
      hopper::hold(sums);
      release_slot(step, slot);
    }
    if (++slot == pipeline.stages) {
      slot = 0;
      phase ^= 1;
    }
  }
  hopper::wait_for_products<0>();
  hopper::hold(sums);
  // nobody reads the pipeline any more, and nothing is on its way to it
  hopper::named_barrier(15, 128 * S::kWarpgroups);
  float* own = reinterpret_cast<float*>(pipeline.tiles) + group * kBox + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int row = i / 4 * 8 + thread % 4 * 2 + i % 2;
    if constexpr (Promotion::kEachStep) {
      own[row * S::kPitch + i / 2 % 2 * 8] = totals[i];
    } else {
      own[row * S::kPitch + i / 2 % 2 * 8] = sums[i];
    }
  }
}

// This block's share of the columns, four at a time, from all parts in their order. Eight loads are under way, because those from other blocks take long.
template <typename S, int kParts, typename TOut, typename Promotion>
__device__ __forceinline__ void add_up(const float* sums, const Target<TOut>& c, int col0, int part, const Sharers& sharers, const Promotion& promote) {
  constexpr int kShare = S::kColumns / kParts, kFours = kShare / 4, kAtOnce = kMaxParts / kParts;
  const int all = min(c.m, S::kRows) * kFours;
  for (int start = threadIdx.x; start < all; start += kAtOnce * S::kThreads) {
    float4 found[kAtOnce][kParts];
    const auto each = [&](auto visit) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = start + j * S::kThreads, row = i / kFours, col = part * kShare + i % kFours * 4;
        if (i < all && col0 + col < c.n) visit(j, row, col);
      }
    };
    each([&](int j, int row, int col) {
      const float* from = sums + row * S::kPitch + col;
#pragma unroll
      for (int k = 0; k < kParts; ++k) found[j][k] = kParts == 1 ? *reinterpret_cast<const float4*>(from) : load_in_block(from, k * sharers.count + sharers.own);
    });
    each([&](int j, int row, int col) {
      float4 total = found[j][0];
#pragma unroll
      for (int k = 1; k < kParts; ++k) {
        total.x += found[j][k].x;
        total.y += found[j][k].y;
        total.z += found[j][k].z;
        total.w += found[j][k].w;
      }
      const int at = col0 + col;
      const float values[4] = {total.x, total.y, total.z, total.w};
      TOut* p = c.data + row * c.row + at * c.col;
      if (c.fours && at + 4 <= c.n) {
        Vec<TOut, 4> out;
#pragma unroll
        for (int k = 0; k < 4; ++k) out[k] = store_from_float<TOut>(values[k] * promote.scale(row, at + k));
        out.store(p);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (at + k < c.n) p[k * c.col] = store_from_float<TOut>(values[k] * promote.scale(row, at + k));
      }
    });
  }
}

// kAlongN: b is stored row by row, so that columns of c are neighbours in memory.  A cluster has a block for each part of k and each sharer of a: sharers
// are numbered first.
template <typename S, bool kAlongN, typename TOut, typename Promotion>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    product_stream(const __grid_constant__ CUtensorMap wide, const __grid_constant__ CUtensorMap few, const __grid_constant__ Target<TOut> c,
                   const __grid_constant__ Plan plan, const __grid_constant__ Promotion promote) {
  extern __shared__ unsigned char raw[];
  const Pipeline<S> pipeline(raw, plan.stages);
  const int group = wgmma::warpgroup(), blocks = cluster_blocks(), block = cluster_block(), count = S::kShares ? plan.sharers : 1;
  const int shift = __ffs(count) - 1, parts = blocks >> shift, part = block >> shift;
  const Sharers sharers{count, part << shift, block & (count - 1)};
  const int cluster = static_cast<int>(blockIdx.x) >> (__ffs(blocks) - 1), col0 = ((cluster << shift) + sharers.own) * S::kColumns;
  const int first = part * plan.steps + min(part, plan.more), last = first + plan.steps + (part < plan.more);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&wide);
    hopper::prefetch_map(&few);
    for (int i = 0; i < pipeline.stages; ++i) {
      hopper::init_barrier(&pipeline.full[i], S::kScaled ? 33 : 1);
      hopper::init_barrier(&pipeline.empty[i], S::kWarpgroups * count);
    }
    hopper::fence_barrier_init();
  }
  if (count > 1) {
    // nothing may be sent to a block whose barriers are not there; they have been published
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  if (group == S::kWarpgroups) {
    produce<S, kAlongN>(pipeline, &wide, &few, col0, first, last, sharers, promote);
  } else {
    if (S::kOverlap) hopper::wait_for_prior_kernels();
    promote.warm(threadIdx.x, col0 + threadIdx.x);
    consume<S, kAlongN, Promotion>(pipeline, last - first, group, sharers);
  }
  if (parts > 1) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
  const float* sums = reinterpret_cast<const float*>(pipeline.tiles);
  switch (parts) {
    case 1: add_up<S, 1>(sums, c, col0, part, sharers, promote); break;
    case 2: add_up<S, 2>(sums, c, col0, part, sharers, promote); break;
    case 4: add_up<S, 4>(sums, c, col0, part, sharers, promote); break;
    default: add_up<S, 8>(sums, c, col0, part, sharers, promote);
  }
  // a block may not end while others of its cluster still read its sums or wait for its rows of a; what a thread has read it has used
  if (blocks > 1) {
    cluster_arrive();
    cluster_wait();
  }
}

// What the TMA cannot address: a thread for each element of c.
template <typename T, typename TOut, typename Promotion>
__global__ void product_stream_plain(wgmma::PlainOperand<T> a, wgmma::PlainOperand<T> b, Target<TOut> c, Promotion promote) {
  const int row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= c.n) return;
  const T *left = a.data + row * a.outer_stride, *right = b.data + col * b.outer_stride;
  float sum = 0.0f;
  for (int i = 0; i < a.depth; ++i)
    sum = fmaf(load_as_float(left[i * a.depth_stride]) * promote.weight(row, col, i), load_as_float(right[i * b.depth_stride]), sum);
  c.data[row * c.row + col * c.col] = store_from_float<TOut>(sum * promote.scale(row, col));
}

/// A shape as an argument.
template <typename S>
struct Chosen {
  using Shape = S;
};

/// How many multiprocessors the current device has.
inline int multiprocessors() {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDevAttrMultiProcessorCount");
  return processors;
}

/// More tiles of 128 columns than multiprocessors, and 128 rows in short steps: two blocks on each, with a pipeline of 100 KB, are fastest.
template <typename S>
bool oversubscribed(int64_t tiles, int processors) {
  return sizeof(typename S::Element) == 2 && S::kRows == kMaxRows && S::kDeep == 1 && S::kColumns == 128 && tiles > processors;
}

/// Parts of k: as many as blocks of all tiles run at once, one on each multiprocessor (of 64 columns on every other one, because adding up takes longer
/// than fewer blocks do), and no part shorter than four steps.
template <typename S, typename Kernel>
int parts_for(Kernel kernel, int64_t tiles, int64_t steps, int sharers, int stages, int processors) {
  constexpr int kNext = S::kColumns == 64 ? 4 : 2;
  const int64_t groups = ceil_div(tiles, static_cast<int64_t>(sharers));
  int parts = 1;
  while (parts < kMaxParts / sharers && kNext * parts * tiles <= processors && 8 * parts <= steps) parts *= 2;
  while (parts > 1 && groups > resident_clusters(kernel, parts * sharers, S::kThreads, S::shared_bytes(stages))) parts /= 2;
  return parts;
}

// The kernel of one shape.
template <typename S, bool kAlongN, typename TOut, typename Promotion>
void launch(const Matrix& a, const wgmma::Lines& lines_a, const Matrix& b, const wgmma::Lines& lines_b, const Matrix& c, const Wanted& wanted,
            cudaStream_t stream, const Promotion& promote) {
  using T = typename S::Element;
  static_assert(S::shared_bytes(2) <= 232448, "the ring and the sums fit shared memory");
  const auto kernel = product_stream<S, kAlongN, TOut, Promotion>;
  const int processors = multiprocessors();
  const int64_t tiles = ceil_div(c.cols, static_cast<int64_t>(S::kColumns)), steps = ceil_div(a.cols, static_cast<int64_t>(S::kDepth));
  const bool two = oversubscribed<S>(tiles, processors);
  const int pipeline = wanted.pipeline > 0 ? wanted.pipeline : two ? 100 : 200;
  const int stages = std::max(2, pipeline * 1024 / S::kStageBytes), shared = S::shared_bytes(stages);
  int sharers = S::kShares ? std::max(1, wanted.sharers) : 1;
  // four share a where all clusters run at once; a second round costs more than it saves
  if (two && wanted.sharers == 0 && wanted.parts <= 1 && ceil_div(tiles, int64_t{4}) <= resident_clusters(kernel, 4, S::kThreads, shared)) sharers = 4;
  const int parts = wanted.parts > 0 ? wanted.parts : two ? 1 : parts_for<S>(kernel, tiles, steps, sharers, stages, processors);
  OPFORGE_CHECK(parts * sharers <= kMaxBlocks && (parts & (parts - 1)) == 0 && (sharers & (sharers - 1)) == 0, ValueError, parts, " parts of k by ",
                sharers, " sharers of a: must be powers of two and together at most the ", kMaxBlocks, " blocks of a cluster; lower PARTS or SHARE");
  resident_clusters(kernel, parts * sharers, S::kThreads, shared);  // prepares the kernel for its shared memory
  const CUtensorMap wide = hopper::describe_matrix(b.data, hopper::kMapType<T>, lines_b.inner, lines_b.outer, lines_b.pitch, kAlongN ? S::kDeep * kBox : kBox, sizeof(T));
  const CUtensorMap few = hopper::describe_matrix(a.data, hopper::kMapType<T>, lines_a.inner, lines_a.outer, lines_a.pitch, S::kRows / sharers, sizeof(T));
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = cluster_launch(ceil_div(tiles, static_cast<int64_t>(sharers)), parts * sharers, S::kThreads, shared, stream, attributes[0]);
  // cluster_launch has set the first attribute if there is a cluster
  cudaLaunchAttribute& early = attributes[config.numAttrs];
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  if (S::kOverlap) ++config.numAttrs;
  const Plan plan{static_cast<int>(steps) / parts, static_cast<int>(steps) % parts, sharers, stages};
  check_cuda(cudaLaunchKernelEx(&config, kernel, wide, few, target_of<TOut>(c), plan, promote), "product_stream");
}

/// c = a b for few rows, with the TMA where it can address both operands, and a with its terms side by side; slowly elsewhere.  The matrices
/// have been checked.
///
/// Sizes::choose<rows>(n, visit)  visits the Chosen Shape for so many rows, and n columns
template <typename Sizes, typename TOut, typename Promotion>
void launch_product(const Matrix& a, const Matrix& b, const Matrix& c, const Wanted& wanted, cudaStream_t stream, const Promotion& promote) {
  using T = typename Sizes::Element;
  OPFORGE_CHECK(c.rows <= kMaxRows, ValueError, c.name, " has ", c.rows, " rows: this kernel takes up to ", kMaxRows, "; use cuda_wgmma");
  const wgmma::Lines lines_a = wgmma::lines_of(a, sizeof(T)), lines_b = wgmma::lines_of(b, sizeof(T));
  const bool terms_together = lines_a.addressable && !lines_a.transposed, readable = lines_b.addressable && (sizeof(T) == 2 || lines_b.transposed);
  if (!terms_together || !readable || a.cols == 0) {
    const wgmma::PlainOperand<T> left{a.typed<const T>(), a.row, a.col, static_cast<int>(a.rows), static_cast<int>(a.cols)};
    const wgmma::PlainOperand<T> right{b.typed<const T>(), b.col, b.row, static_cast<int>(b.cols), static_cast<int>(b.rows)};
    const dim3 grid(static_cast<unsigned>(ceil_div(c.cols, int64_t{128})), static_cast<unsigned>(c.rows));
    product_stream_plain<<<grid, 128, 0, stream>>>(left, right, target_of<TOut>(c), promote);
    return check_cuda(cudaGetLastError(), "product_stream_plain");
  }
  const auto sized = [&](auto rows) {
    Sizes::template choose<decltype(rows)::value>(c.cols, [&](auto chosen) {
      using S = typename decltype(chosen)::Shape;
      if constexpr (sizeof(T) == 2) {
        if (!lines_b.transposed) return launch<S, true, TOut>(a, lines_a, b, lines_b, c, wanted, stream, promote);
      }
      launch<S, false, TOut>(a, lines_a, b, lines_b, c, wanted, stream, promote);
    });
  };
  if (c.rows <= 8) return sized(std::integral_constant<int, 8>());
  if (c.rows <= 16) return sized(std::integral_constant<int, 16>());
  if (c.rows <= 32) return sized(std::integral_constant<int, 32>());
  if (c.rows <= 64) return sized(std::integral_constant<int, 64>());
  sized(std::integral_constant<int, 128>());
}

}  // namespace stream
}  // namespace opforge

#endif  // OPFORGE_GEMM_STREAM_H_
