// opforge/norm/layernorm.h - layer norm on opforge/norm/rows.h, with room for what happens to a result in registers.
#ifndef OPFORGE_LAYERNORM_ROWS_H_
#define OPFORGE_LAYERNORM_ROWS_H_

#include "opforge/norm/rows.h"

namespace opforge {

/// Leaves the result of layer norm as it is.
struct AsItIs {
  static constexpr int kBlocks = 8;
  template <int N>
  __device__ __forceinline__ void operator()(int64_t, int, float (&)[N]) const {}
};

/// The operator of layer norm. `after(r, c, result)` changes the N results of row r from column c on; After::kBlocks is
/// kBlocks of opforge/norm/rows.h for 16 bits.
template <typename T, class After>
struct LayerNormRows {
  static constexpr int kInputs = 1, kConstants = 2;
  static constexpr bool kEmits = true, kCentred = true, kStays = true;
  static constexpr int64_t kStaysFrom = 32768, kStaysTo = 1048576;
  static constexpr int kSlice = sizeof(T) == 2 ? 512 : 1024, kBlocks = sizeof(T) == 2 ? After::kBlocks : 0;
  T* y;
  int64_t y_stride;
  const T* weight;
  const T* bias;
  float eps, per_column;
  After after;

  __device__ const T* constant(int k) const { return k == 0 ? weight : bias; }
  template <class Row>
  __device__ __forceinline__ Moments gather(const Row& row) const { return moments_of_warp<true>(row); }
  __device__ __forceinline__ Normaliser finish(const Moments& of) const { return {of.mean, rsqrtf(of.squares * per_column + eps)}; }
  __device__ void leave(int64_t, const Normaliser&) const {}
  template <int N, int K>
  __device__ __forceinline__ void emit(int64_t r, int c, const Normaliser& of, const float (&constants)[K][N], const float (&x)[N]) const {
    float result[N];
    const float shift = -of.mean * of.scale;
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (x[j] * of.scale + shift) * constants[0][j] + constants[1][j];
    after(r, c, result);
    Packed<T, N>::pack(result).store_once(y + r * y_stride + c);
  }
};

/// y = after(layernorm(x, weight, bias)) over the rows of x. Raises ValueError or TypeError where the tensors do not fit together.
template <class After>
inline void launch_layernorm(const TensorView& x, const TensorView& weight, const TensorView& bias, const TensorView& y, double eps, const After& after) {
  check_same_rows({{"x", x}, {"y", y}});
  check_columns({{"weight", weight}, {"bias", bias}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = as_rows<const T>(x);
    const auto out = as_rows<T>(y);
    const LayerNormRows<T, After> op{out.data, out.stride, data<T>(weight), data<T>(bias), static_cast<float>(eps), 1.0f / static_cast<float>(out.cols), after};
    const bool vectors = rows_vectorize(out) && can_vectorize(op.weight, out.cols) && can_vectorize(op.bias, out.cols);
    launch_norm_rows<T>(op, in, in, vectors, current_stream(x));
  });
}

}  // namespace opforge

#endif  // OPFORGE_LAYERNORM_ROWS_H_
