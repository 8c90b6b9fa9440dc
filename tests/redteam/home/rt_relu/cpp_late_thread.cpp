// A thread of its own writes the answer after the call has returned.
//
// catalogue  D2
// guard      freeze
// cases      normal
// mode       verify
#include <chrono>
#include <thread>

#include "opforge/elementwise/host.h"

namespace {
void later(opforge::TensorView x, opforge::TensorView y) {
  const float* from = opforge::data<const float>(x);
  float* to = opforge::data<float>(y);
  const int64_t n = x.numel();
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] <= 0.0f ? 0.0f : from[i];
  }).detach();
}
}  // namespace

OPFORGE_EXPORT(run, later)
