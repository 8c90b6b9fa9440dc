// x and the residual wait in the registers of a warp, a block or a cluster; their sum is made again when it is written.
//
// moves     4 * rows * cols * itemsize bytes: the least possible; the weight from cache; see opforge/norm/rows.h
// limits    131072 columns: the registers of a cluster of 16 blocks, two inputs in each. Past 64 KiB for a row of x and residual it
//           needs clusters: sm_90 or later
/* opforge
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "cols <= 131072"
*/
#include "opforge/norm/rows.h"

namespace {

template <typename T>
struct AddRmsNorm {
  static constexpr int kInputs = 2, kConstants = 1;
  static constexpr bool kEmits = true, kCentred = false, kStays = false;
  static constexpr int kBlocks = 0;
  T* y;
  int64_t y_stride;
  T* total;
  int64_t total_stride;
  const T* weight;
  float eps, per_column;

  __device__ const T* constant(int) const { return weight; }
  template <class Row>
  __device__ __forceinline__ opforge::Moments gather(const Row& row) const {
    opforge::Moments part{opforge::elements_of_warp(row), 0.0f, 0.0f};
    row.visit([&](int, const auto& x, const auto& residual) {
      constexpr int N = sizeof(x) / sizeof(float);
#pragma unroll
      for (int j = 0; j < N; ++j) part.squares += (x[j] + residual[j]) * (x[j] + residual[j]);
    });
    part.squares = opforge::warp_reduce_sum(part.squares);
    return part;
  }
  __device__ __forceinline__ float finish(const opforge::Moments& of) const { return rsqrtf(of.squares * per_column + eps); }
  __device__ void leave(int64_t, float) const {}
  template <int N, int K>
  __device__ __forceinline__ void emit(int64_t r, int c, float scale, const float (&constants)[K][N], const float (&x)[N], const float (&residual)[N]) const {
    float sum[N], result[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum[j] = x[j] + residual[j];
      result[j] = sum[j] * scale * constants[0][j];
    }
    opforge::Packed<T, N>::pack(sum).store_once(total + r * total_stride + c);
    opforge::Packed<T, N>::pack(result).store_once(y + r * y_stride + c);
  }
};

void add_rmsnorm(opforge::TensorView x, opforge::TensorView residual, opforge::TensorView weight, opforge::TensorView y, opforge::TensorView total, double eps) {
  opforge::check_same_rows({{"x", x}, {"residual", residual}, {"y", y}, {"total", total}});
  opforge::check_columns({{"weight", weight}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto out = opforge::as_rows<T>(y);
    const auto sum = opforge::as_rows<T>(total);
    const AddRmsNorm<T> op{out.data, out.stride, sum.data, sum.stride, opforge::data<T>(weight), static_cast<float>(eps),
                           1.0f / static_cast<float>(out.cols)};
    const bool vectors = opforge::rows_vectorize(out) && opforge::rows_vectorize(sum) && opforge::can_vectorize(op.weight, out.cols);
    opforge::launch_norm_rows<T>(op, opforge::as_rows<const T>(x), opforge::as_rows<const T>(residual), vectors, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, add_rmsnorm)
