// Says that it reads any strides, and reads what lies side by side.
//
// catalogue  M6
// guard      declared
// cases      normal hidden
// mode       verify
/* opforge
layouts = ["contiguous", "strided"]
*/
#include "opforge/elementwise/host.h"

namespace {
void dense(opforge::TensorView x, opforge::TensorView y) {
  const float* from = opforge::data<const float>(x);
  float* to = opforge::data<float>(y);
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] <= 0.0f ? 0.0f : from[i];
}
}  // namespace

OPFORGE_EXPORT(run, dense)
