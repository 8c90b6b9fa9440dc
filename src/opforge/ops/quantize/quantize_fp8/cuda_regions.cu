// A group of threads for each region that shares a scale: it looks for the largest magnitude, then rounds what it has seen.
//
// moves     x is read from memory once and from the first-level cache once more, q and the scales are written once. A scale for the
//           whole tensor costs a reading of x before that, whose largest magnitudes (one a block) every block adds up by itself
// idea      256 threads for a row or a tile of 128 x 128. A block of 1 x 128 is one vector for each of 32 lanes (16 of a 16-bit x): some
//           blocks are loaded before the first one is looked at, and rounded from the registers that they came to
// limits    16-byte loads where rows begin at such addresses, else one element at a time, twice, a warp for a block
/* opforge
layouts = ["contiguous", "rows"]

[supports]
there_is_something = "m > 0 and k > 0"

[space]
REGIONS = [1, 2, 4, 8]

[default]
REGIONS = 4
*/
#include "opforge/numeric/fp8_device.h"
#include "opforge/numeric/math_device.h"
#include "opforge/rows/device.h"
#include "opforge/arch/scratch.h"

// Tunable: blocks of 1 x 128 that a group of lanes has under way at once.
#ifndef REGIONS
#define REGIONS 4
#endif

namespace {

using opforge::Rows;

constexpr int kSide = 128;       // of a block and of a tile
constexpr int kThreads = 256;    // that share a row or a tile
constexpr int kPartials = 1024;  // at the most, of the search through a whole tensor
constexpr float kLeast = 1.175494351e-38f;  // 2^-126: what zeros are divided by, too

enum Scaling { kTensor, kRow, kBlock, kTile };

// Infinities and NaN have no place in a scale.
__device__ __forceinline__ float finite_magnitude(float v) {
  const float magnitude = fabsf(v);
  return magnitude <= 3.402823466e+38f ? magnitude : 0.0f;
}

// Rows [row, row + rows) and columns [col, col + cols) of a matrix, walked by `size` threads, N elements at a time.
struct Region {
  int64_t row, col;
  int rows;
  int64_t cols;

  template <int N, typename F>
  __device__ __forceinline__ void visit(int rank, int size, const F& f) const {
    if (rows == 1) {
      for (int64_t c = static_cast<int64_t>(rank) * N; c < cols; c += size * N) f(row, col + c);
    } else {
      // at the most 128 x 128, seen as rows of 128
      for (int i = rank * N; i < rows * kSide; i += size * N)
        if (i % kSide < cols) f(row + i / kSide, col + i % kSide);
    }
  }
};

template <typename T, int N>
__device__ __forceinline__ float largest_in(const Rows<const T>& x, const Region& region, int rank, int size) {
  float largest = 0.0f;
  region.visit<N>(rank, size, [&](int64_t r, int64_t c) {
    float values[N];
    opforge::load_constant<T, N>(x.data + r * x.stride + c, values);
#pragma unroll
    for (float v : values) largest = fmaxf(largest, finite_magnitude(v));
  });
  return largest;
}

template <typename T, typename Q, int N>
__device__ __forceinline__ void round_region(const Rows<const T>& x, const Rows<Q>& q, const Region& region, float scale, int rank, int size) {
  region.visit<N>(rank, size, [&](int64_t r, int64_t c) {
    float values[N];
    opforge::load_constant<T, N>(x.data + r * x.stride + c, values);
    opforge::Vec<Q, N> rounded;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const bool finite = fabsf(values[j]) <= 3.402823466e+38f;
      rounded[j] = opforge::store_from_float<Q>(finite ? values[j] / scale : nanf(""));
    }
    rounded.store(q.data + r * q.stride + c);
  });
}

// One region to a group: a block of 1 x 128, a row, or a tile.
template <typename T, typename Q, int N, class Group>
__global__ void quantize_regions(Rows<const T> x, Rows<Q> q, float* scales, int64_t s_row, int64_t s_block, int64_t down, int64_t across, int height,
                                 int64_t width) {
  const int64_t region_number = Group::row();
  // a warp beyond the last region leaves; a block is one region, so all of it stays
  if (region_number >= down * across) return;
  const int64_t i = region_number / across, j = region_number % across;
  const int64_t rows = x.rows - i * height, cols = x.cols - j * width;
  const Region region{i * height, j * width, static_cast<int>(rows < height ? rows : height), cols < width ? cols : width};
  const float largest = Group::reduce(largest_in<T, N>(x, region, Group::rank(), Group::size()), opforge::Max());
  const float scale = fmaxf(largest / Q::Format::kLargest, kLeast);
  round_region<T, Q, N>(x, q, region, scale, Group::rank(), Group::size());
  if (Group::rank() == 0) scales[i * s_row + j * s_block] = scale;
}

// v / by as a division rounds it, given a reciprocal within an ulp or two: one correction by the remainder, and no branch for
// reciprocals that are no normal numbers, which scales do not have. Of what is not finite the remainder is NaN.
__device__ __forceinline__ float divide(float v, float by, float reciprocal) {
  const float about = v * reciprocal;
  return fmaf(fmaf(-about, by, v), reciprocal, about);
}

// REGIONS blocks of 1 x 128 to a group of lanes that hold one each, in vectors of N elements; neighbouring groups have neighbours.
template <typename T, typename Q, int N>
__global__ void quantize_blocks(Rows<const T> x, Rows<Q> q, float* scales, int64_t s_row, int64_t s_block, unsigned across) {
  constexpr int kLanes = kSide / N;
  const unsigned groups = kThreads / kLanes, lane = threadIdx.x % kLanes, first = blockIdx.x * groups * REGIONS + threadIdx.x / kLanes;
  opforge::Vec<T, N> held[REGIONS];
  unsigned rows[REGIONS], blocks[REGIONS], row = first / across, block = first % across;
  const auto column_of = [&](int i) { return static_cast<int64_t>(blocks[i]) * kSide + lane * N; };
#pragma unroll
  for (int i = 0; i < REGIONS; ++i) {
    rows[i] = row;
    blocks[i] = block;
#pragma unroll
    for (int j = 0; j < N; ++j) held[i][j] = opforge::store_from_float<T>(0.0f);
    if (row < x.rows && column_of(i) < x.cols) held[i] = opforge::load_constant<T, N>(x.data + row * x.stride + column_of(i));
    for (block += groups; block >= across; block -= across) ++row;
  }
#pragma unroll
  for (int i = 0; i < REGIONS; ++i) {
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) largest = fmaxf(largest, finite_magnitude(opforge::load_as_float(held[i][j])));
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(opforge::kFullMask, largest, apart));
    const float scale = fmaxf(divide(largest, Q::Format::kLargest, 1.0f / Q::Format::kLargest), kLeast);
    const float reciprocal = opforge::reciprocal_approximate(scale);
    opforge::Vec<Q, N> rounded;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const float low = opforge::load_as_float(held[i][j]), high = opforge::load_as_float(held[i][j + 1]);
      const auto two = opforge::detail::round_two_to_fp8<typename Q::Format>(divide(low, scale, reciprocal), divide(high, scale, reciprocal));
      rounded[j] = two[0];
      rounded[j + 1] = two[1];
    }
    if (rows[i] >= x.rows) continue;
    const int64_t at = rows[i];
    if (column_of(i) < x.cols) rounded.store(q.data + at * q.stride + column_of(i));
    if (lane == 0) scales[at * s_row + blocks[i] * s_block] = scale;
  }
}

// The largest magnitude of every gridDim.x-th row, one for each block.
template <typename T, int N>
__global__ void largest_of_rows(Rows<const T> x, float* partials) {
  float largest = 0.0f;
  for (int64_t r = blockIdx.x; r < x.rows; r += gridDim.x) largest = fmaxf(largest, largest_in<T, N>(x, Region{r, 0, 1, x.cols}, threadIdx.x, kThreads));
  largest = opforge::block_reduce_max(largest);
  if (threadIdx.x == 0) partials[blockIdx.x] = largest;
}

template <typename T, typename Q, int N>
__global__ void quantize_rows(Rows<const T> x, Rows<Q> q, float* scale_out, const float* partials, int count) {
  float largest = 0.0f;
  for (int i = threadIdx.x; i < count; i += kThreads) largest = fmaxf(largest, partials[i]);
  const float scale = fmaxf(opforge::block_reduce_max(largest) / Q::Format::kLargest, kLeast);
  for (int64_t r = blockIdx.x; r < x.rows; r += gridDim.x) round_region<T, Q, N>(x, q, Region{r, 0, 1, x.cols}, scale, threadIdx.x, kThreads);
  if (blockIdx.x == 0 && threadIdx.x == 0) *scale_out = scale;
}

template <typename T, typename Q, int N>
void quantize_with(const Rows<const T>& x, const Rows<Q>& q, const opforge::TensorView& scale, Scaling scaling, cudaStream_t stream) {
  float* scales = opforge::data<float>(scale);
  if (scaling == kTensor) {
    const int blocks = static_cast<int>(x.rows < kPartials ? x.rows : kPartials);
    const opforge::Scratch partials(blocks * sizeof(float), stream);
    float* largest = static_cast<float*>(partials.data());
    OPFORGE_LAUNCH((largest_of_rows<T, N>), blocks, kThreads, 0, stream, x, largest);
    OPFORGE_LAUNCH((quantize_rows<T, Q, N>), blocks, kThreads, 0, stream, x, q, scales, static_cast<const float*>(largest), blocks);
    return;
  }
  const int height = scaling == kTile ? kSide : 1;
  const int64_t width = scaling == kRow ? x.cols : kSide;
  const int64_t down = opforge::ceil_div(x.rows, height), across = opforge::ceil_div(x.cols, width), regions = down * across;
  OPFORGE_CHECK(regions <= 2147483647, ValueError, "x has ", regions, " regions, more than a grid can count");
  const int64_t s_row = scale.stride(0), s_block = scale.stride(1);
  if constexpr (N > 1) {
    if (scaling == kBlock) {
      const unsigned grid = static_cast<unsigned>(opforge::ceil_div(regions, kThreads / (kSide / N) * REGIONS));
      OPFORGE_LAUNCH((quantize_blocks<T, Q, N>), grid, kThreads, 0, stream, x, q, scales, s_row, s_block, static_cast<unsigned>(across));
      return;
    }
  }
  if (scaling == kBlock) {
    const unsigned grid = static_cast<unsigned>(opforge::ceil_div(regions, opforge::kWarpsPerBlock));
    OPFORGE_LAUNCH((quantize_regions<T, Q, N, opforge::WarpGroup>), grid, opforge::kWarpsPerBlock * opforge::kWarpSize, 0, stream, x, q, scales, s_row, s_block,
                   down, across, height, width);
  } else {
    OPFORGE_LAUNCH((quantize_regions<T, Q, N, opforge::BlockGroup>), static_cast<unsigned>(regions), kThreads, 0, stream, x, q, scales, s_row, s_block, down,
                   across, height, width);
  }
}

void quantize_fp8(opforge::TensorView x, opforge::TensorView q, opforge::TensorView scale, int scaling, int) {
  opforge::check_rows({"x", x});
  opforge::check_rows({"q", q});
  OPFORGE_CHECK_SAME_SHAPE(x, q);
  OPFORGE_CHECK_NDIM(scale, 2);
  for (const opforge::TensorView& tensor : {x, q, scale}) OPFORGE_CHECK_DEVICE(tensor);
  if (x.numel() == 0) return;
  const cudaStream_t stream = opforge::current_stream(x);
  OPFORGE_DISPATCH_DTYPE(x, T, OPFORGE_DISPATCH_FP8(q, Q, {
    const auto from = opforge::as_rows<const T>(x);
    const auto to = opforge::as_rows<Q>(q);
    constexpr int kWide = opforge::kVecSize<T>;
    const bool wide = from.cols % kWide == 0 && from.stride % kWide == 0 && to.stride % kWide == 0 && reinterpret_cast<uintptr_t>(from.data) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(to.data) % kWide == 0;
    (wide ? quantize_with<T, Q, kWide> : quantize_with<T, Q, 1>)(from, to, scale, static_cast<Scaling>(scaling), stream);
  }));
}

}  // namespace

OPFORGE_EXPORT(run, quantize_fp8)
