// The maximum first, then the sum of exp, then the differences, with a row at a time in the cache.
//
// moves     2 * rows * cols * itemsize bytes while a row fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/softmax_host.h"

namespace {

template <typename T>
void log_softmax_rows(opforge::Rows<const T> x, opforge::Rows<T> y) {
  opforge::for_each_row(x.rows, x.cols, [&](int64_t r) {
    const T* row = x.data + r * x.stride;
    const opforge::TopAndSum found = opforge::top_and_sum(row, x.cols);
    const float top = found.top, log_sum = std::log(found.sum);
    opforge::map_row(x.cols, y.data + r * y.stride, [top, log_sum](float v) { return (v - top) - log_sum; }, row);
  });
}

void log_softmax(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         log_softmax_rows<T>(opforge::as_rows<const T>(x), opforge::as_rows<T>(y)));
}

}  // namespace

OPFORGE_EXPORT(run, log_softmax)
