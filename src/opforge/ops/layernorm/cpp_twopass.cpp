// Mean first, then the variance of the deviations from it, with a row at a time in cache.
//
// moves     2 * rows * cols * itemsize bytes while a row of floats fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/host_rows.h"

namespace {

template <typename T>
void layernorm_rows(opforge::Rows<const T> x, const T* weight, const T* bias, opforge::Rows<T> y,
                    float eps) {
  const int64_t cols = x.cols;
  const opforge::FloatColumns<T> weights(weight, cols), biases(bias, cols);
  const float* w = weights.get();
  const float* b = biases.get();
  opforge::for_each_row(x.rows, cols, [&](int64_t r, float* buffer) {
    const float* row = opforge::row_as_float(x.data + r * x.stride, buffer, cols);
    const float mean = opforge::sum_over(row, cols, [](auto v) { return v; }) / cols;
    const float variance = opforge::sum_over(row, cols, [mean](auto v) {
      const auto centred = v - mean;
      return centred * centred;
    }) / cols;
    const float scale = 1.0f / std::sqrt(variance + eps);
    T* out = y.data + r * y.stride;
    float* target = opforge::row_target(out, buffer);
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) target[c] = (row[c] - mean) * scale * w[c] + b[c];
    opforge::finish_row(target, out, cols);
  });
}

void layernorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias,
               opforge::TensorView y, double eps) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_COLUMNS(weight, x);
  OPFORGE_CHECK_COLUMNS(bias, x);
  OPFORGE_DISPATCH_DTYPE(
      x, T,
      layernorm_rows<T>(opforge::as_rows<const T>(x), opforge::data<T>(weight),
                        opforge::data<T>(bias), opforge::as_rows<T>(y), static_cast<float>(eps)));
}

}  // namespace

OPFORGE_EXPORT(run, layernorm)
