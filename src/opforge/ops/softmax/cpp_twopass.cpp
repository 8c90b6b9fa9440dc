// The maximum first, then exp and its sum, with a row at a time in the first-level cache.
//
// moves     2 * rows * cols * itemsize bytes while a row of floats fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/host_pieces.h"

namespace {

template <typename T>
void softmax_rows(opforge::Rows<const T> x, opforge::Rows<T> y) {
  const int64_t cols = x.cols;
  opforge::for_each_row(x.rows, cols, [&](int64_t r, float* buffer) {
    opforge::Pieces<T> row(x.data + r * x.stride, cols);
    T* out = y.data + r * y.stride;
    float top = -INFINITY, sum = 0.0f;
    row.visit([&](const float* piece, int64_t, int64_t n) {
      const float highest = opforge::max_over(piece, n);
      top = highest > top ? highest : top;
    });
    float* numerators = opforge::row_target(out, buffer);
    row.visit([&](const float* piece, int64_t first, int64_t n) {
      float* target = numerators + first;
      float part = 0.0f;
#pragma omp simd reduction(+ : part)
      for (int64_t c = 0; c < n; ++c) part += target[c] = opforge::exp(piece[c] - top);
      sum += part;
    });
    const float scale = 1.0f / sum;
    for (int64_t first = 0; first < cols; first += opforge::Pieces<T>::kSize) {
      const int64_t n = std::min<int64_t>(cols - first, opforge::Pieces<T>::kSize);
      float* values = numerators + first;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) values[c] *= scale;
      opforge::finish_row(values, out + first, n);
    }
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
