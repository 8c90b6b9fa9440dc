// Sum of squares first, then the scaled row, with a row at a time in the first-level cache.
//
// moves     2 * rows * cols * itemsize bytes while a row fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/host.h"

namespace {

template <typename T>
void rmsnorm_rows(opforge::Rows<const T> x, const T* weight, opforge::Rows<T> y, float eps) {
  opforge::for_each_row(x.rows, x.cols, [&](int64_t r) {
    const T* row = x.data + r * x.stride;
    const float squares = opforge::sum_map(x.cols, [](float v) { return v * v; }, row);
    const float scale = 1.0f / std::sqrt(squares / x.cols + eps);
    opforge::map_row(x.cols, y.data + r * y.stride, [scale](float v, float w) { return v * scale * w; }, row, weight);
  });
}

void rmsnorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView y, double eps) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  opforge::check_columns({{"weight", weight}}, {"x", x});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         rmsnorm_rows<T>(opforge::as_rows<const T>(x), opforge::data<T>(weight),
                                         opforge::as_rows<T>(y), static_cast<float>(eps)));
}

}  // namespace

OPFORGE_EXPORT(run, rmsnorm)
