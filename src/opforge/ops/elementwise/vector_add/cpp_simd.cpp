// One pass over x and y in float32 vectors, in parallel: vector_add(x, y, z).
#include "opforge/elementwise/host.h"

/* opforge
any_rank = true
*/

namespace {

void vector_add(opforge::TensorView x, opforge::TensorView y, opforge::TensorView z) {
  const auto add = [](float a, float b) { return a + b; };
  opforge::map_tensors(add, {"z", z}, {"x", x}, {"y", y});
}

}  // namespace

OPFORGE_EXPORT(run, vector_add)
