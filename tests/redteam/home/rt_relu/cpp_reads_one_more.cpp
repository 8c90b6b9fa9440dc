// Reads one element past the end, and makes nothing of it.
//
// catalogue  M6
// guard      places
// cases      normal odd hidden
// mode       verify
#include <cstdint>

#include "opforge/elementwise/host.h"

namespace {
float relu(float x) { return x <= 0.0f ? 0.0f : x; }

void guest(opforge::TensorView x, opforge::TensorView y) {
  float* from = opforge::data<float>(x);
  float* to = opforge::data<float>(y);
  const int64_t count = x.numel();
  volatile float unused = from[count];
  (void)unused;
  for (int64_t i = 0; i < count; ++i) to[i] = relu(from[i]);
}
}  // namespace

OPFORGE_EXPORT(run, guest)
