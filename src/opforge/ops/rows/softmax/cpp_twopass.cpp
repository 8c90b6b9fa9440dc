// The maximum first, then exp and its sum, with a row at a time in the first-level cache.
//
// moves     2 * rows * cols * itemsize bytes while a row and its exponentials as floats fit the second-level cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/host.h"
#include "opforge/numeric/math.h"

namespace {

template <typename T>
void softmax_rows(opforge::Rows<const T> x, opforge::Rows<T> y) {
  opforge::for_each_buffered_row(x.rows, opforge::kept_floats(x.cols), [&](int64_t r, float* numerators) {
    const T* row = x.data + r * x.stride;
    const float top = opforge::largest(x.cols, row);
    const float scale = 1.0f / opforge::keep_sum(x.cols, numerators, [top](float v) { return opforge::exp_nonpositive(v - top); }, row);
    opforge::map_kept(x.cols, y.data + r * y.stride, [scale](float term) { return term * scale; }, numerators);
  });
}

void softmax(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         softmax_rows<T>(opforge::as_rows<const T>(x), opforge::as_rows<T>(y)));
}

}  // namespace

OPFORGE_EXPORT(run, softmax)
