// Short rows in the registers of a warp or a block; past 32 KiB blocks or clusters that stay, with weight and bias in shared memory
// and the next row on its way while this one is normalised.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; weight and bias from cache, or once for each group that stays; see opforge/norm_rows.h
// limits    262144 columns: the registers of a cluster of 16 blocks. Past a block's registers (32768 columns of 16 bits, 16384
//           of 32) it needs clusters: sm_90 or later
/* opforge
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "cols <= 262144"
*/
#include "opforge/norm_rows.h"

namespace {

template <typename T>
struct LayerNorm {
  static constexpr int kInputs = 1, kConstants = 2;
  static constexpr bool kEmits = true, kCentred = true, kStays = true;
  static constexpr int64_t kStaysFrom = 32768, kStaysTo = 1048576;
  static constexpr int kSlice = sizeof(T) == 2 ? 512 : 1024;
  T* y;
  int64_t y_stride;
  const T* weight;
  const T* bias;
  float eps, per_column;

  __device__ const T* constant(int k) const { return k == 0 ? weight : bias; }
  template <class Row>
  __device__ __forceinline__ opforge::Moments gather(const Row& row) const { return opforge::moments_of_warp<true>(row); }
  __device__ __forceinline__ opforge::Normaliser finish(const opforge::Moments& of) const { return {of.mean, rsqrtf(of.squares * per_column + eps)}; }
  __device__ void leave(int64_t, const opforge::Normaliser&) const {}
  template <int N, int K>
  __device__ __forceinline__ void emit(int64_t r, int c, const opforge::Normaliser& of, const float (&constants)[K][N], const float (&x)[N]) const {
    float result[N];
    const float shift = -of.mean * of.scale;
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (x[j] * of.scale + shift) * constants[0][j] + constants[1][j];
    opforge::Packed<T, N>::pack(result).store_once(y + r * y_stride + c);
  }
};

void layernorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y, double eps) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_COLUMNS(weight, x);
  OPFORGE_CHECK_COLUMNS(bias, x);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(weight);
  OPFORGE_CHECK_DEVICE(bias);
  OPFORGE_CHECK_DEVICE(y);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = opforge::as_rows<const T>(x);
    const auto out = opforge::as_rows<T>(y);
    const LayerNorm<T> op{out.data, out.stride, opforge::data<T>(weight), opforge::data<T>(bias), static_cast<float>(eps), 1.0f / static_cast<float>(out.cols)};
    const bool vectors = opforge::rows_vectorize(out) && opforge::can_vectorize(op.weight, out.cols) && opforge::can_vectorize(op.bias, out.cols);
    opforge::launch_norm_rows<T>(op, in, in, vectors, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, layernorm)
