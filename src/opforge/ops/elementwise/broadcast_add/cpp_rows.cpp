// Long rows where they lie, short ones in stretches with b laid out beside them once: broadcast_add(x, b, y).
#include "opforge/abi/checks.h"
#include "opforge/elementwise/broadcast_host.h"

namespace {

void broadcast_add(opforge::TensorView x, opforge::TensorView b, opforge::TensorView y) {
  opforge::check_same_layout({{"x", x}, {"y", y}});
  const opforge::BroadcastAxes axes = opforge::axes_of_broadcast({"x", x}, {"b", b});
  if (x.numel() == 0) return;
  const auto add = [](float v, float w) { return v + w; };
  OPFORGE_DISPATCH_DTYPE(
      x, T, opforge::broadcast_map(axes, opforge::data<T>(y), add, opforge::data<const T>(x), std::array<const T*, 1>{opforge::data<const T>(b)}));
}

}  // namespace

OPFORGE_EXPORT(run, broadcast_add)
