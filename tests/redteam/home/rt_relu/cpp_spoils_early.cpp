// Writes a number that processors are slow with into its input in its second call on the workload, before any turn.
//
// catalogue  M2
// guard      watched
// cases      normal
// mode       time
#include <cstdint>

#include "opforge/elementwise/host.h"

namespace {
float relu(float x) { return x <= 0.0f ? 0.0f : x; }

void guest(opforge::TensorView x, opforge::TensorView y) {
  float* from = opforge::data<float>(x);
  float* to = opforge::data<float>(y);
  const int64_t count = x.numel();
  static int64_t calls = 0;
  for (int64_t i = 0; i < count; ++i) to[i] = relu(from[i]);
  if (count > 100000 && ++calls == 3) from[count / 3] = 1e-40f;
}
}  // namespace

OPFORGE_EXPORT(run, guest)
