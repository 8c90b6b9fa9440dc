// opforge/rows/scans_device.h - each element of all up to it, along a row, on the GPU: running sums, products and extremes.
//
// A block takes a row, and what a scan leaves of it waits in shared memory as float. A thread scans a piece of its own, one element
// after another; the pieces' last elements are scanned over the block, and each piece takes what came before it. Pieces have an odd
// number of elements: the threads of a warp then read 32 different banks.
//
// An operator is a functor: `operator()(const BlockRow& row, int64_t r) const`, which calls row.scan, row.reduce and row.each.
// source    Blelloch, Prefix Sums and Their Applications, 1990, section 1.2 (pieces, then the pieces' totals)
#ifndef OPFORGE_ROWS_SCANS_DEVICE_H_
#define OPFORGE_ROWS_SCANS_DEVICE_H_

#include "opforge/elementwise/formula_device.h"
#include "opforge/rows/device.h"

namespace opforge {

/// What combines two elements of a scan; Sum, Larger and Smaller are others.
struct Product {
  static constexpr float identity = 1.0f;
  __device__ __forceinline__ float operator()(float a, float b) const { return a * b; }
};

/// A row as a block of threads sees it, with a buffer of `cols` floats for each scan.
struct BlockRow {
  float* buffers;
  int cols;

  __device__ __forceinline__ float* buffer(int i) const { return buffers + int64_t(i) * cols; }
  __device__ __forceinline__ bool leads() const { return threadIdx.x == 0; }

  /// Calls body(c) for every column c, each by one thread.
  template <class F>
  __device__ __forceinline__ void each(const F& body) const {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) body(c);
  }
  /// op over f(c) of every column; every thread gets it.
  template <class Op, class F>
  __device__ __forceinline__ float reduce(const Op& op, const F& f) const {
    float value = Op::identity;
    each([&](int c) { value = op(value, f(c)); });
    return BlockGroup::reduce(value, op);
  }
  /// out[c] = op over f(0) ... f(c), for every column. Any thread may read all of `out` afterwards.
  template <class Op, class F>
  __device__ __forceinline__ void scan(float* out, const Op& op, const F& f) const {
    each([&](int c) { out[c] = f(c); });
    __syncthreads();
    const int threads = blockDim.x, piece = ((cols + threads - 1) / threads) | 1;
    const int first = min(cols, static_cast<int>(threadIdx.x) * piece), last = min(cols, first + piece);
    float running = Op::identity;
    for (int c = first; c < last; ++c) out[c] = running = op(running, out[c]);
    const float before = before_thread(running, op);
    if (threadIdx.x > 0) {
      for (int c = first; c < last; ++c) out[c] = op(before, out[c]);
    }
    __syncthreads();
  }

 private:
  /// op over the values of the threads before this one.
  template <class Op>
  __device__ __forceinline__ static float before_thread(float value, const Op& op) {
    __shared__ float warps[kWarpSize];
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, count = blockDim.x / kWarpSize;
    const float upto = scan_lanes(value, op, lane);
    if (lane == kWarpSize - 1) warps[warp] = upto;
    __syncthreads();
    if (warp == 0) {
      const float all = scan_lanes(lane < count ? warps[lane] : Op::identity, op, lane);
      warps[lane] = all;
    }
    __syncthreads();
    float before = __shfl_up_sync(kFullMask, upto, 1);
    if (lane == 0) before = Op::identity;
    return warp == 0 ? before : op(warps[warp - 1], before);
  }
  template <class Op>
  __device__ __forceinline__ static float scan_lanes(float value, const Op& op, int lane) {
#pragma unroll
    for (int step = 1; step < kWarpSize; step *= 2) {
      const float other = __shfl_up_sync(kFullMask, value, step);
      if (lane >= step) value = op(other, value);
    }
    return value;
  }
};

template <class Op>
__global__ void __launch_bounds__(1024) scanned_rows(Op op, int cols) {
  OPFORGE_DYNAMIC_SHARED(float, buffers);
  op(BlockRow{buffers, cols}, static_cast<int64_t>(blockIdx.x));
}

/// Runs `op` on `rows` rows of `cols` columns, with `scans` buffers; `each` columns for a thread, as far as 1024 threads go.
template <class Op>
inline void launch_scanned_rows(const Op& op, int64_t rows, int64_t cols, int scans, int each, cudaStream_t stream) {
  if (rows == 0 || cols == 0) return;
  OPFORGE_CHECK(rows <= INT32_MAX, ValueError, "a grid holds 2^31 - 1 rows at most (got ", rows, ")");
  const int64_t bytes = scans * cols * static_cast<int64_t>(sizeof(float));
  OPFORGE_CHECK(bytes <= max_dynamic_shared(), ValueError, "a row of ", cols, " columns with ", scans,
                " scans does not fit a block's shared memory; use another implementation");
  const int64_t wanted = ceil_div(ceil_div(cols, each), kWarpSize) * kWarpSize;
  const int threads = static_cast<int>(wanted < 1024 ? wanted : 1024);
  // beyond 48 KiB a launch asks first, and what the kernel holds besides counts too
  const int64_t asked = bytes + kReservedShared > 48 * 1024 ? std::max<int64_t>(bytes, 48 * 1024 + 16) : bytes;
  OPFORGE_LAUNCH((scanned_rows<Op>), static_cast<unsigned>(rows), threads, static_cast<std::size_t>(asked), stream, op, static_cast<int>(cols));
}

}  // namespace opforge

#endif  // OPFORGE_ROWS_SCANS_DEVICE_H_
