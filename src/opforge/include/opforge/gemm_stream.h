// opforge/gemm_stream.h - a product of few rows on Hopper: the wide matrix streams by once, from memory to the tensor cores.
//
// c (m x n) = a (m x k) b (k x n) with m <= 128.  What counts is how fast b comes in.  wgmma's first side is never shorter than 64,
// so the sides are exchanged: 64 columns of c are its rows, and 8 to 128 rows of c its columns.  A warpgroup holds the sums of 64
// columns.  One warp keeps a ring of steps full by TMA.  Blocks of a cluster take parts of k; each leaves its sums in shared memory,
// reads the others' sums of its share of the columns there, and adds them up in the order of the parts: the same bits at every call,
// no second kernel, no atomics.  sm_90a alone.
#ifndef OPFORGE_GEMM_STREAM_H_
#define OPFORGE_GEMM_STREAM_H_

#include <algorithm>

#include "opforge/gemm_wgmma.h"
#include "opforge/groups.h"

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
}  // namespace hopper

namespace stream {

using hopper::Barrier;
using hopper::kBox;
using hopper::kBoxBytes;

constexpr int kMaxRows = 128, kMaxParts = 8;

/// Everything that follows from the elements (16 or 8 bits) and the sizes.
///
/// columns     of c in a block           ring_bytes  about how many bytes of both operands are under way or waiting
/// rows        of c: 8, 16, 32, 64, 128  scaled      a step's scales come through the ring too
/// deep        128 bytes of terms in a step: 1, or 2 (16-bit elements alone)
/// overlap     blocks may start while the kernel before runs
template <typename T, int columns, int rows, int ring_bytes, bool scaled, bool overlap, int deep = 1>
struct Shape {
  using Element = T;
  static constexpr int kDeep = deep, kDepth = deep * 128 / sizeof(T);  // terms per step
  static constexpr int kColumns = columns, kRows = rows, kWarpgroups = columns / kBox, kThreads = 128 * kWarpgroups + 32;
  static constexpr int kFewBytes = rows * 128, kStageBytes = deep * (columns * 128 + kFewBytes), kStages = std::max(2, ring_bytes / kStageBytes);
  // the sums of a block: those of a row side by side, rows so far apart that the lanes of a warp write to different banks
  static constexpr int kPitch = columns + 4, kSumBytes = rows * kPitch * static_cast<int>(sizeof(float));
  static constexpr int kRingBytes = std::max(kStages * kStageBytes, kSumBytes);
  static constexpr bool kScaled = scaled, kOverlap = overlap;
  static constexpr int kScales = scaled ? rows + (kWarpgroups + 1) / 2 * 2 : 0;  // of a step: one for each row, one for 64 columns; an even number
  static constexpr int kSharedBytes = kRingBytes + kStages * (kScales * static_cast<int>(sizeof(float)) + 2 * static_cast<int>(sizeof(Barrier))) + 1024;
  // two blocks on a multiprocessor where their rings allow it: the next kernel's may wait there
  static constexpr int kBlocks = 2 * (kSharedBytes + 1024) <= 233472 && 2 * kThreads * (rows + 56) <= 65536 ? 2 : 1;
  static_assert(kSharedBytes <= 232448, "the ring and the sums fit shared memory");
  static_assert(deep == 1 || sizeof(T) == 2, "8-bit products move their sums after every 128 terms");
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
struct Kept {
  static constexpr bool kEachStep = false, kScaled = false;
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

// Shared memory of a block: the ring of steps (later the sums), the steps' scales, the barriers.
template <typename S>
struct Ring {
  unsigned char* tiles;
  float* scales;
  Barrier *full, *empty;

  __device__ __forceinline__ explicit Ring(unsigned char* raw)
      : tiles(raw + (1024 - shared_address(raw) % 1024) % 1024),
        scales(reinterpret_cast<float*>(tiles + S::kRingBytes)),
        full(reinterpret_cast<Barrier*>(scales + S::kStages * S::kScales)),
        empty(full + S::kStages) {}
};

// One warp fills the ring with the steps from `first` to `last`: 64-column boxes of b, then the rows of a.
template <typename S, bool kAlongN, typename Promotion>
__device__ __forceinline__ void produce(const Ring<S>& ring, const CUtensorMap* wide, const CUtensorMap* few, int col0, int first, int last,
                                        const Promotion& promote) {
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
  if (S::kOverlap) {
    hopper::let_next_kernel_start();
    hopper::wait_for_kernels_before();
  }
  int slot = 0;
  uint32_t phase = 0;
  for (int step = first; step < last; ++step) {
    if (S::kScaled || lane == 0) {
      hopper::wait(&ring.empty[slot], phase ^ 1);
      Barrier* full = &ring.full[slot];
      if (lane == 0) {
        hopper::arrive_expecting(full, S::kStageBytes);
        unsigned char* tiles = ring.tiles + slot * S::kStageBytes;
        boxes(step, [&](int i, int inner, int outer) {
          unsigned char* target = tiles + i * (S::kDeep / kEach) * kBoxBytes;
          hopper::start_box(target, wide, inner, outer, full);
        });
#pragma unroll
        for (int i = 0; i < S::kDeep; ++i)
          hopper::start_box(tiles + S::kWarpgroups * S::kDeep * kBoxBytes + i * S::kFewBytes, few, step * S::kDepth + i * (S::kDepth / S::kDeep), 0, full);
      }
      if constexpr (S::kScaled) {
        float* scales = ring.scales + slot * S::kScales;
        for (int i = lane; i < S::kRows; i += 32) hopper::start_float(scales + i, promote.of_row(i, step));
        if (lane < S::kWarpgroups) hopper::start_float(scales + S::kRows + lane, promote.of_column(col0 + lane * kBox, step));
        hopper::arrive_when_copied(full);
      }
    }
    if (++slot == S::kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
  __syncwarp();
}

// A warpgroup multiplies its 64 columns of every step and leaves its sums where the ring was.
template <typename S, bool kAlongN, typename Promotion>
__device__ __forceinline__ void consume(const Ring<S>& ring, int steps, int group) {
  using T = typename S::Element;
  using Product = hopper::Product<T, S::kRows, kAlongN, false>;
  constexpr int kSums = S::kRows / 2;
  // one instruction's terms further in a box: 16 rows of 128 bytes where columns are neighbours, 32 bytes where terms are
  constexpr uint32_t kStepWide = (kAlongN ? 16 * 128 : 32) >> 4, kStepFew = 32 >> 4;
  const int thread = threadIdx.x % 128;
  const uint32_t tiles = shared_address(ring.tiles);
  const uint64_t first_wide = hopper::operand(tiles + group * S::kDeep * kBoxBytes, kBoxBytes, 1024);
  const uint64_t first_few = hopper::operand(tiles + S::kWarpgroups * S::kDeep * kBoxBytes, kBoxBytes, 1024);
  float sums[kSums];
  float totals[Promotion::kEachStep ? kSums : 1];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
#pragma unroll
  for (float& total : totals) total = 0.0f;
  int slot = 0, before = 0;
  uint32_t phase = 0;
  for (int step = 0; step < steps; ++step) {
    hopper::wait(&ring.full[slot], phase);
    const uint64_t at = static_cast<uint64_t>(slot * (S::kStageBytes >> 4));
    hopper::hold(sums);
    hopper::begin_products();
#pragma unroll
    for (int i = 0; i < 4 * S::kDeep; ++i)
      Product::run(sums, first_wide + at + i / 4 * (kBoxBytes >> 4) + i % 4 * kStepWide, first_few + at + i / 4 * (S::kFewBytes >> 4) + i % 4 * kStepFew,
                   (!Promotion::kEachStep && step > 0) || i > 0);
    hopper::close_products();
    hopper::hold(sums);
    if constexpr (Promotion::kEachStep) {
      [[maybe_unused]] float2 rows[S::kScaled ? S::kRows / 8 : 1];
      [[maybe_unused]] float by_column = 1.0f;
      if constexpr (S::kScaled) {
        const float* scales = ring.scales + slot * S::kScales;
#pragma unroll
        for (int i = 0; i < S::kRows / 8; ++i) rows[i] = *reinterpret_cast<const float2*>(scales + i * 8 + thread % 4 * 2);
        by_column = scales[S::kRows + group];
      }
      hopper::wait_for_products<0>();
      hopper::hold(sums);
      if (S::kScaled) hopper::named_barrier(1 + group, 128);  // every thread has its scales
      if (thread == 0) hopper::arrive(&ring.empty[slot]);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if constexpr (S::kScaled) {
          totals[i] = fmaf(sums[i], by_column * (i % 2 == 0 ? rows[i / 4].x : rows[i / 4].y), totals[i]);
        } else {
          totals[i] += sums[i];
        }
      }
    } else {
      // the step before is done when only this one is under way
      hopper::wait_for_products<1>();
      if (step > 0 && thread == 0) hopper::arrive(&ring.empty[before]);
      before = slot;
    }
    if (++slot == S::kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
  hopper::wait_for_products<0>();
  hopper::hold(sums);
  // nobody reads the ring any more, and nothing is on its way to it
  hopper::named_barrier(15, 128 * S::kWarpgroups);
  float* own = reinterpret_cast<float*>(ring.tiles) + group * kBox + thread / 32 * 16 + thread % 32 / 4;
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

// kAlongN: b is stored row by row, so that columns of c are neighbours in memory.  A cluster has a block for each part of k.
template <typename S, bool kAlongN, typename TOut, typename Promotion>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    product_stream(const __grid_constant__ CUtensorMap wide, const __grid_constant__ CUtensorMap few, const __grid_constant__ Target<TOut> c, int steps,
                   const __grid_constant__ Promotion promote) {
  extern __shared__ unsigned char raw[];
  const Ring<S> ring(raw);
  const int group = wgmma::warpgroup(), parts = cluster_blocks(), part = cluster_block();
  const int col0 = static_cast<int>(blockIdx.x) / parts * S::kColumns;
  const int each = steps / parts, more = steps % parts;  // the first parts have a step more
  const int first = part * each + min(part, more), last = first + each + (part < more);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&wide);
    hopper::prefetch_map(&few);
    for (int i = 0; i < S::kStages; ++i) {
      hopper::init_barrier(&ring.full[i], S::kScaled ? 33 : 1);
      hopper::init_barrier(&ring.empty[i], S::kWarpgroups);
    }
    hopper::publish_barriers();
  }
  __syncthreads();
  if (group == S::kWarpgroups) {
    produce<S, kAlongN>(ring, &wide, &few, col0, first, last, promote);
  } else {
    if (S::kOverlap) hopper::wait_for_kernels_before();
    consume<S, kAlongN, Promotion>(ring, last - first, group);
  }
  if (parts > 1) {
    cluster_barrier();
  } else {
    __syncthreads();
  }
  // this block's share of the columns, four at a time, from all parts in their order
  const float* sums = reinterpret_cast<const float*>(ring.tiles);
  const int share = S::kColumns / parts, fours = share / 4, count = min(c.m, S::kRows) * fours;
  for (int i = threadIdx.x; i < count; i += S::kThreads) {
    const int row = i / fours, col = part * share + i % fours * 4;
    const float* from = sums + row * S::kPitch + col;
    float4 found[kMaxParts];
#pragma unroll
    for (int j = 0; j < kMaxParts; ++j)
      if (j < parts) found[j] = load_in_block(from, j);
    float4 all = found[0];
#pragma unroll
    for (int j = 1; j < kMaxParts; ++j) {
      if (j < parts) {
        all.x += found[j].x;
        all.y += found[j].y;
        all.z += found[j].z;
        all.w += found[j].w;
      }
    }
    const int at = col0 + col;
    if (at >= c.n) continue;
    const float values[4] = {all.x, all.y, all.z, all.w};
    TOut* p = c.data + row * c.row + at * c.col;
    if (c.fours && at + 4 <= c.n) {
      Vec<TOut, 4> out;
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j] = store_from_float<TOut>(values[j] * promote.scale(row, at + j));
      out.store(p);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (at + j < c.n) p[j * c.col] = store_from_float<TOut>(values[j] * promote.scale(row, at + j));
    }
  }
  // a block may not end while others of its cluster still read its sums
  if (parts > 1) cluster_barrier();
}

// What the TMA cannot address: a thread for each element of c.
template <typename T, typename TOut, typename Promotion>
__global__ void product_stream_plain(wgmma::Plain<T> a, wgmma::Plain<T> b, Target<TOut> c, Promotion promote) {
  const int row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= c.n) return;
  const T *left = a.data + row * a.outer_stride, *right = b.data + col * b.outer_stride;
  float sum = 0.0f;
  for (int i = 0; i < a.depth; ++i)
    sum = fmaf(load_as_float(left[i * a.depth_stride]) * promote.weight(row, col, i), load_as_float(right[i * b.depth_stride]), sum);
  c.data[row * c.row + col * c.col] = store_from_float<TOut>(sum * promote.scale(row, col));
}

/// Parts of k: as many as blocks of all tiles run at once, one on each multiprocessor, and no part shorter than four steps.
template <typename S, typename Kernel>
int parts_for(Kernel kernel, int64_t tiles, int64_t steps) {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDevAttrMultiProcessorCount");
  int parts = 1;
  while (parts < kMaxParts && 2 * parts * tiles <= processors && 8 * parts <= steps) parts *= 2;
  while (parts > 1 && tiles > resident_clusters(kernel, parts, S::kThreads, S::kSharedBytes)) parts /= 2;
  return parts;
}

// The kernel of one shape: `parts` of k, or 0 for as many as suit.
template <typename S, bool kAlongN, typename TOut, typename Promotion>
void launch(const Matrix& a, const wgmma::Lines& lines_a, const Matrix& b, const wgmma::Lines& lines_b, const Matrix& c, int parts, cudaStream_t stream,
            const Promotion& promote) {
  using T = typename S::Element;
  const auto kernel = product_stream<S, kAlongN, TOut, Promotion>;
  const CUtensorMap wide = hopper::describe_matrix(b.data, hopper::kMapType<T>, lines_b.inner, lines_b.outer, lines_b.pitch, kAlongN ? S::kDeep * kBox : kBox, sizeof(T));
  const CUtensorMap few = hopper::describe_matrix(a.data, hopper::kMapType<T>, lines_a.inner, lines_a.outer, lines_a.pitch, S::kRows, sizeof(T));
  const int64_t tiles = ceil_div(c.cols, static_cast<int64_t>(S::kColumns)), steps = ceil_div(a.cols, static_cast<int64_t>(S::kDepth));
  if (parts == 0) parts = parts_for<S>(kernel, tiles, steps);
  resident_clusters(kernel, parts, S::kThreads, S::kSharedBytes);  // prepares the kernel for its shared memory
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = cluster_launch(tiles, parts, S::kThreads, S::kSharedBytes, stream, attributes[0]);
  // cluster_launch has set the first attribute if there is a cluster
  cudaLaunchAttribute& early = attributes[config.numAttrs];
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  if (S::kOverlap) ++config.numAttrs;
  check_cuda(cudaLaunchKernelEx(&config, kernel, wide, few, target_of<TOut>(c), static_cast<int>(steps), promote), "product_stream");
}

/// c = a b for few rows, with the TMA where it can address both operands, and a with its terms side by side; slowly elsewhere.  The matrices
/// have been checked.
///
/// Sized<rows>  the Shape for so many rows
/// parts        of k, 0: as many as suit
template <template <int> class Sized, typename TOut, typename Promotion>
void launch_product(const Matrix& a, const Matrix& b, const Matrix& c, int parts, cudaStream_t stream, const Promotion& promote) {
  using T = typename Sized<8>::Element;
  OPFORGE_CHECK(c.rows <= kMaxRows, ValueError, c.name, " has ", c.rows, " rows: this kernel takes up to ", kMaxRows, "; use cuda_wgmma");
  const wgmma::Lines lines_a = wgmma::lines_of(a, sizeof(T)), lines_b = wgmma::lines_of(b, sizeof(T));
  const bool terms_together = lines_a.addressable && !lines_a.transposed, readable = lines_b.addressable && (sizeof(T) == 2 || lines_b.transposed);
  if (!terms_together || !readable || a.cols == 0) {
    const wgmma::Plain<T> left{a.typed<const T>(), a.row, a.col, static_cast<int>(a.rows), static_cast<int>(a.cols)};
    const wgmma::Plain<T> right{b.typed<const T>(), b.col, b.row, static_cast<int>(b.cols), static_cast<int>(b.rows)};
    const dim3 grid(static_cast<unsigned>(ceil_div(c.cols, int64_t{128})), static_cast<unsigned>(c.rows));
    product_stream_plain<<<grid, 128, 0, stream>>>(left, right, target_of<TOut>(c), promote);
    return check_cuda(cudaGetLastError(), "product_stream_plain");
  }
  const auto sized = [&](auto rows) {
    using S = Sized<decltype(rows)::value>;
    if constexpr (sizeof(T) == 2) {
      if (!lines_b.transposed) return launch<S, true, TOut>(a, lines_a, b, lines_b, c, parts, stream, promote);
    }
    launch<S, false, TOut>(a, lines_a, b, lines_b, c, parts, stream, promote);
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
