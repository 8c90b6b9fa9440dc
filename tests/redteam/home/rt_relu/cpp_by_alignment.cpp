// Wrong where its input begins 16 bytes past a line.
//
// catalogue  M6
// guard      places
// cases      normal hidden
// mode       verify
#include <cstdint>

#include "opforge/elementwise/host.h"

namespace {
float relu(float x) { return x <= 0.0f ? 0.0f : x; }

void guest(opforge::TensorView x, opforge::TensorView y) {
  float* from = opforge::data<float>(x);
  float* to = opforge::data<float>(y);
  const int64_t count = x.numel();
  const bool shifted = reinterpret_cast<std::uintptr_t>(from) % 64 == 16;
  for (int64_t i = 0; i < count; ++i) to[i] = relu(from[i]);
  if (shifted && count > 0) to[0] += 1.0f;
}
}  // namespace

OPFORGE_EXPORT(run, guest)
