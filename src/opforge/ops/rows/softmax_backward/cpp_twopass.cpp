// The sum of y * dy first, then the result, a row at a time: the second visit finds the row in the cache.
//
// moves     3 * rows * cols * itemsize bytes while a row of y and dy fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/host.h"

namespace {

template <typename T>
void gradient_rows(opforge::Rows<const T> y, opforge::Rows<const T> dy, opforge::Rows<T> dx) {
  opforge::for_each_row(y.rows, y.cols, [&](int64_t r) {
    const T *results = y.data + r * y.stride, *gradients = dy.data + r * dy.stride;
    const float total = opforge::sum_map(y.cols, [](float a, float b) { return a * b; }, results, gradients);
    opforge::map_row(y.cols, dx.data + r * dx.stride, [total](float a, float b) { return a * (b - total); }, results, gradients);
  });
}

void softmax_backward(opforge::TensorView y, opforge::TensorView dy, opforge::TensorView dx) {
  opforge::check_same_rows({{"y", y}, {"dy", dy}, {"dx", dx}});
  OPFORGE_DISPATCH_DTYPE(y, T,
                         gradient_rows<T>(opforge::as_rows<const T>(y), opforge::as_rows<const T>(dy),
                                          opforge::as_rows<T>(dx)));
}

}  // namespace

OPFORGE_EXPORT(run, softmax_backward)
