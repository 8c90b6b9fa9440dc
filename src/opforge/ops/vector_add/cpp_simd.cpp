// One pass over x and y in float32 vectors, in parallel: vector_add(x, y, z).
#include "opforge/elementwise_host.h"

/* opforge
any_rank = true
*/

namespace {

void vector_add(opforge::TensorView x, opforge::TensorView y, opforge::TensorView z) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_SHAPE(x, z);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, z);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_CONTIGUOUS(z);
  const auto add = [](float a, float b) { return a + b; };
  OPFORGE_DISPATCH_DTYPE(
      x, T, opforge::map(x.numel(), opforge::data<T>(z), add, opforge::data<const T>(x), opforge::data<const T>(y)));
}

}  // namespace

OPFORGE_EXPORT(run, vector_add)
