// The sum is made, written and squared while a row passes through the first-level cache, then scaled there.
//
// moves     4 * rows * cols * itemsize bytes while a row fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/host.h"

namespace {

template <typename T>
void add_rmsnorm_rows(opforge::Rows<const T> x, opforge::Rows<const T> residual, const T* weight, opforge::Rows<T> y, opforge::Rows<T> total, float eps) {
  opforge::for_each_row(x.rows, x.cols, [&](int64_t r) {
    const T *row = x.data + r * x.stride, *added = residual.data + r * residual.stride;
    opforge::map_row(x.cols, total.data + r * total.stride, [](float v, float a) { return v + a; }, row, added);
    const float squares = opforge::sum_map(x.cols, [](float v, float a) { return (v + a) * (v + a); }, row, added);
    const float scale = 1.0f / std::sqrt(squares / x.cols + eps);
    opforge::map_row(x.cols, y.data + r * y.stride, [scale](float v, float a, float w) { return (v + a) * scale * w; }, row, added, weight);
  });
}

void add_rmsnorm(opforge::TensorView x, opforge::TensorView residual, opforge::TensorView weight, opforge::TensorView y, opforge::TensorView total, double eps) {
  opforge::check_same_rows({{"x", x}, {"residual", residual}, {"y", y}, {"total", total}});
  opforge::check_columns({{"weight", weight}}, {"x", x});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         add_rmsnorm_rows<T>(opforge::as_rows<const T>(x), opforge::as_rows<const T>(residual), opforge::data<T>(weight),
                                             opforge::as_rows<T>(y), opforge::as_rows<T>(total), static_cast<float>(eps)));
}

}  // namespace

OPFORGE_EXPORT(run, add_rmsnorm)
