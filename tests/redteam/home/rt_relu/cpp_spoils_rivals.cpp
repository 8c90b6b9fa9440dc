// Writes a number that processors are slow with into the memory that its rivals read too, once, after some calls.
//
// catalogue  D14
// guard      watched
// cases      normal
// mode       time
#include "opforge/elementwise/host.h"

namespace {
void spoil(opforge::TensorView x, opforge::TensorView y) {
  static int64_t calls = 0;
  float* from = opforge::data<float>(x);
  float* to = opforge::data<float>(y);
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] <= 0.0f ? 0.0f : from[i];
  if (x.numel() > 100000 && ++calls == 8) from[x.numel() / 3] = 1e-40f;
}
}  // namespace

OPFORGE_EXPORT(run, spoil)
