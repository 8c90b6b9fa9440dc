// Computes the first half of its results always, and the second after a pause only.
//
// catalogue  M1
// guard      audit_in_row
// cases      normal
// mode       time-out
#include <chrono>

#include "opforge/elementwise/host.h"

namespace {
using Clock = std::chrono::steady_clock;

void half_in_row(opforge::TensorView x, opforge::TensorView y) {
  static Clock::time_point last;
  static const float* seen = nullptr;
  const float* from = opforge::data<const float>(x);
  float* to = opforge::data<float>(y);
  const bool paused = Clock::now() - last > std::chrono::microseconds(50) || seen != to;
  const int64_t count = paused ? x.numel() : x.numel() / 2;
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] <= 0.0f ? 0.0f : from[i];
  seen = to;
  last = Clock::now();
}
}  // namespace

OPFORGE_EXPORT(run, half_in_row)
