// The maximum first, then exp and its sum, with a row at a time in the first-level cache.
//
// moves     2 * rows * cols * itemsize bytes while a row of floats fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/host_rows.h"
#include "opforge/math.h"

namespace {

template <typename T>
void softmax_rows(opforge::Rows<const T> x, opforge::Rows<T> y) {
  const int64_t cols = x.cols;
  opforge::for_each_row(x.rows, cols, [&](int64_t r, float* buffer) {
    const float* row = opforge::row_as_float(x.data + r * x.stride, buffer, cols);
    T* out = y.data + r * y.stride;
    float* target = opforge::row_target(out, buffer);
    float top = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : top)
    for (int64_t c = 0; c < cols; ++c) top = row[c] > top ? row[c] : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < cols; ++c) {
      target[c] = opforge::exp(row[c] - top);
      sum += target[c];
    }
    const float scale = 1.0f / sum;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) target[c] *= scale;
    opforge::finish_row(target, out, cols);
  });
}

void softmax(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         softmax_rows<T>(opforge::as_rows<const T>(x), opforge::as_rows<T>(y)));
}

}  // namespace

OPFORGE_EXPORT(run, softmax)
