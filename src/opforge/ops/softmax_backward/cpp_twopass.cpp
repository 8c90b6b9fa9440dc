// The sum of y * dy first, then the result, a row at a time: the second visit finds the row in the cache.
//
// moves     3 * rows * cols * itemsize bytes while a row of y and dy fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <algorithm>

#include "opforge/host_rows.h"

namespace {

constexpr int64_t kPiece = 1024;  // two pieces of 16-bit elements as float stay in the first-level cache

template <typename T>
void gradient_rows(opforge::Rows<const T> y, opforge::Rows<const T> dy, opforge::Rows<T> dx) {
  const int64_t cols = y.cols;
  opforge::for_each_row(y.rows, kPiece, [&](int64_t r, float* buffer) {
    const T *y_row = y.data + r * y.stride, *dy_row = dy.data + r * dy.stride;
    T* out = dx.data + r * dx.stride;
    alignas(64) float wide[kPiece], wide_gradient[kPiece];
    float total = 0.0f;
    for (int64_t first = 0; first < cols; first += kPiece) {
      const int64_t n = std::min(cols - first, kPiece);
      const float* a = opforge::row_as_float(y_row + first, wide, n);
      const float* b = opforge::row_as_float(dy_row + first, wide_gradient, n);
      float part = 0.0f;
#pragma omp simd reduction(+ : part)
      for (int64_t c = 0; c < n; ++c) part += a[c] * b[c];
      total += part;
    }
    for (int64_t first = 0; first < cols; first += kPiece) {
      const int64_t n = std::min(cols - first, kPiece);
      const float* a = opforge::row_as_float(y_row + first, wide, n);
      const float* b = opforge::row_as_float(dy_row + first, wide_gradient, n);
      float* target = opforge::row_target(out + first, buffer);
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) target[c] = a[c] * (b[c] - total);
      opforge::finish_row(target, out + first, n);
    }
  });
}

void softmax_backward(opforge::TensorView y, opforge::TensorView dy, opforge::TensorView dx) {
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_ROWS(dy);
  OPFORGE_CHECK_ROWS(dx);
  OPFORGE_CHECK_SAME_SHAPE(y, dy);
  OPFORGE_CHECK_SAME_SHAPE(y, dx);
  OPFORGE_CHECK_SAME_DTYPE(y, dy);
  OPFORGE_CHECK_SAME_DTYPE(y, dx);
  OPFORGE_DISPATCH_DTYPE(y, T,
                         gradient_rows<T>(opforge::as_rows<const T>(y), opforge::as_rows<const T>(dy),
                                          opforge::as_rows<T>(dx)));
}

}  // namespace

OPFORGE_EXPORT(run, softmax_backward)
