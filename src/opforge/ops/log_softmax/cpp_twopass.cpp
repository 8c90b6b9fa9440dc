// The maximum first, then the sum of exp, then the differences, with a row at a time in the cache.
//
// moves     2 * rows * cols * itemsize bytes while a row of floats fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/host_pieces.h"

namespace {

template <typename T>
void log_softmax_rows(opforge::Rows<const T> x, opforge::Rows<T> y) {
  const int64_t cols = x.cols;
  opforge::for_each_row(x.rows, opforge::Pieces<T>::kSize, [&](int64_t r, float* buffer) {
    opforge::Pieces<T> row(x.data + r * x.stride, cols);
    T* out = y.data + r * y.stride;
    const opforge::TopAndSum found = opforge::top_and_sum(row);
    const float top = found.top;
    const float log_sum = std::log(found.sum);
    row.visit([&](const float* piece, int64_t first, int64_t n) {
      float* target = opforge::row_target(out + first, buffer);
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) target[c] = (piece[c] - top) - log_sum;
      opforge::finish_row(target, out + first, n);
    });
  });
}

void log_softmax(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         log_softmax_rows<T>(opforge::as_rows<const T>(x), opforge::as_rows<T>(y)));
}

}  // namespace

OPFORGE_EXPORT(run, log_softmax)
