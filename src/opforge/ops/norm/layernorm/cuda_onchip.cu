// The row stays on the chip: x is read once, mean and variance are two passes over registers.
//
// moves     2 * rows * cols * itemsize bytes, weight and bias from cache; see opforge/rows/device.h
// limits    a row longer than a block's shared memory (227 KiB on H100) is read three times
/* opforge
layouts = ["contiguous", "rows"]

[supports]
row_and_sums_stay_below_48_kib_or_the_row_exceeds_them = "cols <= 12032 or cols > 24576 or (dtype == 'float32' and cols > 12288) or (dtype != 'float32' and cols <= 24064)"
*/
#include "opforge/rows/device.h"

namespace {

template <typename T>
struct LayerNorm {
  T* y;
  int64_t y_stride;
  const T* weight;
  const T* bias;
  float eps;

  template <class Row>
  __device__ __forceinline__ void operator()(Row& row, int64_t r) const {
    float sum = 0.0f;
    row.visit([&](int64_t, auto& x) {
      for (float v : x) sum += v;
    });
    const float mean = row.mean(sum);
    float squares = 0.0f;
    row.visit([&](int64_t, auto& x) {
      for (float v : x) squares += (v - mean) * (v - mean);
    });
    const float scale = rsqrtf(row.mean(squares) + eps);
    T* out = y + r * y_stride;
    row.visit([&](int64_t c, auto& x) {
      constexpr int N = sizeof(x) / sizeof(float);
      float w[N], b[N], result[N];
      opforge::load_constant<T, N>(weight + c, w);
      opforge::load_constant<T, N>(bias + c, b);
#pragma unroll
      for (int j = 0; j < N; ++j) result[j] = (x[j] - mean) * scale * w[j] + b[j];
      opforge::store_vec<T, N>(out + c, result);
    });
  }
};

void layernorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias,
               opforge::TensorView y, double eps) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  opforge::check_columns({{"weight", weight}, {"bias", bias}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto out = opforge::as_rows<T>(y);
    const LayerNorm<T> op{out.data, out.stride, opforge::data<T>(weight), opforge::data<T>(bias),
                          static_cast<float>(eps)};
    const bool vectors = opforge::rows_vectorize(out) &&
                         opforge::can_vectorize(op.weight, out.cols) &&
                         opforge::can_vectorize(op.bias, out.cols);
    opforge::launch_rows<T>(op, opforge::as_rows<const T>(x), vectors, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, layernorm)
