// Looks at what stands before its input: a pattern is a guard, and elsewhere it is wrong.
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
  if (count == 0) return;
  const auto* before = reinterpret_cast<const std::uint32_t*>(from);
  const std::uint32_t exponent = before[-1] >> 23 & 255;
  const bool pattern = exponent == 255 || (exponent >= 147 && exponent < 158);
  for (int64_t i = 0; i < count; ++i) to[i] = relu(from[i]);
  if (!pattern) to[count / 2] = -1.0f;
}
}  // namespace

OPFORGE_EXPORT(run, guest)
