// Both rows wait in the registers of a warp, a block or a cluster of blocks.
//
// moves     3 * rows * cols * itemsize bytes: the least possible; see opforge/onchip_rows.h
// limits    262144 columns of 16 bits, 131072 of 32: the registers of a cluster of 16 blocks. Past a block's registers it needs
//           clusters: sm_90 or later
/* opforge
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "cols <= 262144"
[space]
VECS = [2, 4]
SLICE = [256, 512, 1024]
PLAIN = [32768, 65536]
[limits]
row_fits_a_cluster = "cols * itemsize <= 262144 * VECS"
[default]
VECS = 4
SLICE = 512
PLAIN = 65536
*/
#include "opforge/onchip_rows.h"

namespace {

template <typename T>
struct Gradient {
  static constexpr int kInputs = 2;
  static constexpr bool kEmits = true;
  static constexpr float kOutside = 0.0f;
  using Stat = float;
  T* dx;
  int64_t dx_stride;

  __device__ static __forceinline__ float empty() { return 0.0f; }
  template <class Row>
  __device__ static __forceinline__ float gather(const Row& row) {
    float sum = 0.0f;
    row.visit([&](int, const auto& y, const auto& dy) {
#pragma unroll
      for (int j = 0; j < static_cast<int>(sizeof(y) / sizeof(float)); ++j) sum += y[j] * dy[j];
    });
    return opforge::warp_reduce_sum(sum);
  }
  __device__ static __forceinline__ float merge_lanes(float part) { return opforge::warp_reduce_sum(part); }
  __device__ __forceinline__ float finish(int64_t, float sum) const { return sum; }
  __device__ void leave(int64_t, float) const {}
  __device__ __forceinline__ T* out(int64_t r) const { return dx + r * dx_stride; }
  template <int N>
  __device__ __forceinline__ void compute(int, float sum, float (&result)[N], const float (&y)[N], const float (&dy)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = y[j] * (dy[j] - sum);
  }
};

void softmax_backward(opforge::TensorView y, opforge::TensorView dy, opforge::TensorView dx) {
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_ROWS(dy);
  OPFORGE_CHECK_ROWS(dx);
  OPFORGE_CHECK_SAME_SHAPE(y, dy);
  OPFORGE_CHECK_SAME_SHAPE(y, dx);
  OPFORGE_CHECK_SAME_DTYPE(y, dy);
  OPFORGE_CHECK_SAME_DTYPE(y, dx);
  OPFORGE_CHECK_DEVICE(y);
  OPFORGE_CHECK_DEVICE(dy);
  OPFORGE_CHECK_DEVICE(dx);
  OPFORGE_DISPATCH_DTYPE(y, T, {
    const auto out = opforge::as_rows<T>(dx);
    Gradient<T> op;
    op.dx = out.data, op.dx_stride = out.stride;
    opforge::launch_onchip_rows<T, Gradient<T>, VECS, SLICE, PLAIN>(
        op, opforge::as_rows<const T>(y), opforge::as_rows<const T>(dy), out, opforge::current_stream(y));
  });
}

}  // namespace

OPFORGE_EXPORT(run, softmax_backward)
