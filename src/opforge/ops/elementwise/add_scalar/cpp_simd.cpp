// One parallel pass in float32 vectors: add_scalar(x, y, value).
#include "opforge/elementwise/host.h"

/* opforge
any_rank = true
*/

namespace {

void add_scalar(opforge::TensorView x, opforge::TensorView y, double value) {
  const float number = static_cast<float>(value);
  const auto shifted = [number](float v) { return v + number; };
  opforge::map_tensors(shifted, {"y", y}, {"x", x});
}

}  // namespace

OPFORGE_EXPORT(run, add_scalar)
