// Mean first, then the variance of the deviations from it, with a row at a time in cache.
//
// moves     2 * rows * cols * itemsize bytes while a row fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/host.h"

namespace {

void layernorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y, double eps) {
  opforge::layernorm_tensors(x, weight, bias, y, eps, nullptr);
}

}  // namespace

OPFORGE_EXPORT(run, layernorm)
