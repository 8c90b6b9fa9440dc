// The sum is made, written and squared while a row passes through the first-level cache, then scaled there.
//
// moves     4 * rows * cols * itemsize bytes while a row of floats fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/host_rows.h"

namespace {

template <typename T>
void add_rmsnorm_rows(opforge::Rows<const T> x, opforge::Rows<const T> residual, const T* weight, opforge::Rows<T> y, opforge::Rows<T> total, float eps) {
  const int64_t cols = x.cols;
  const opforge::FloatColumns<T> weights(weight, cols);
  const float* w = weights.get();
  // two rows of floats: the sum, and the residual on its way there
  opforge::for_each_row(x.rows, 2 * cols, [&](int64_t r, float* buffer) {
    const float* added = opforge::row_as_float(residual.data + r * residual.stride, buffer + cols, cols);
    const float* row = opforge::row_as_float(x.data + r * x.stride, buffer, cols);
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) buffer[c] = row[c] + added[c];
    opforge::convert_from_float(buffer, total.data + r * total.stride, cols);
    const float squares = opforge::sum_over(buffer, cols, [](auto v) { return v * v; });
    const float scale = 1.0f / std::sqrt(squares / cols + eps);
    T* out = y.data + r * y.stride;
    float* target = opforge::row_target(out, buffer);
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) target[c] = buffer[c] * scale * w[c];
    opforge::finish_row(target, out, cols);
  });
}

void add_rmsnorm(opforge::TensorView x, opforge::TensorView residual, opforge::TensorView weight, opforge::TensorView y, opforge::TensorView total, double eps) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(residual);
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_ROWS(total);
  OPFORGE_CHECK_SAME_SHAPE(x, residual);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_SHAPE(x, total);
  OPFORGE_CHECK_SAME_DTYPE(x, residual);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, total);
  OPFORGE_CHECK_COLUMNS(weight, x);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         add_rmsnorm_rows<T>(opforge::as_rows<const T>(x), opforge::as_rows<const T>(residual), opforge::data<T>(weight),
                                             opforge::as_rows<T>(y), opforge::as_rows<T>(total), static_cast<float>(eps)));
}

}  // namespace

OPFORGE_EXPORT(run, add_rmsnorm)
