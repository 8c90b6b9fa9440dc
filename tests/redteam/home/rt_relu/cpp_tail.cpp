// Leaves what does not fill a vector of 8 unwritten.
//
// catalogue  A8
// guard      poison
// cases      odd
// mode       verify
#include "opforge/elementwise/host.h"

namespace {
void most(opforge::TensorView x, opforge::TensorView y) {
  const float* from = opforge::data<const float>(x);
  float* to = opforge::data<float>(y);
  for (int64_t i = 0; i < x.numel() / 8 * 8; ++i) to[i] = from[i] <= 0.0f ? 0.0f : from[i];
}
}  // namespace

OPFORGE_EXPORT(run, most)
