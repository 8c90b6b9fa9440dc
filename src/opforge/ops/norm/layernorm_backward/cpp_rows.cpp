// Each thread takes blocks of rows, some side by side: statistics, then all sums in one pass, then dx, while the rows are in cache.
//
// moves     3 * rows * cols * itemsize bytes while eight rows fit the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/norm/backward_host.h"

namespace {

void layernorm_backward(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView dy, opforge::TensorView dx, opforge::TensorView dweight,
                        opforge::TensorView dbias, double eps) {
  opforge::check_same_rows({{"x", x}, {"dy", dy}, {"dx", dx}});
  opforge::check_columns({{"weight", weight}, {"dweight", dweight}, {"dbias", dbias}}, {"x", x});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         opforge::norm_gradient<true>(opforge::as_rows<const T>(x), opforge::data<const T>(weight), opforge::as_rows<const T>(dy),
                                                      opforge::as_rows<T>(dx), opforge::data<T>(dweight), opforge::data<T>(dbias), static_cast<float>(eps)));
}

}  // namespace

OPFORGE_EXPORT(run, layernorm_backward)
