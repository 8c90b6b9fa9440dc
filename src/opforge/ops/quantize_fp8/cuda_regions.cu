// A group of threads for each region that shares a scale: it looks for the largest magnitude, then rounds what it has seen.
//
// moves     x is read from memory once and from the first-level cache once more, q and the scales are written once. A scale for the
//           whole tensor costs a reading of x before that, whose largest magnitudes (one a block) every block adds up by itself
// idea      a warp for a block of 1 x 128; 256 threads for a row or a tile of 128 x 128
// limits    16-byte loads where rows begin at such addresses, else one element at a time
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/device_fp8.h"
#include "opforge/device_rows.h"
#include "opforge/scratch.h"

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
