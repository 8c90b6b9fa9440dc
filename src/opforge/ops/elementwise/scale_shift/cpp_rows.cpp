// Long maps where they lie, short ones in stretches with scale and shift laid out beside them once: scale_shift(x, scale, shift, y).
#include "opforge/abi/checks.h"
#include "opforge/elementwise/broadcast_host.h"

namespace {

void scale_shift(opforge::TensorView x, opforge::TensorView scale, opforge::TensorView shift, opforge::TensorView y) {
  opforge::check_same_layout({{"x", x}, {"y", y}});
  const opforge::BroadcastAxes axes = opforge::axes_of_channels({"x", x}, {{"scale", scale}, {"shift", shift}});
  if (x.numel() == 0) return;
  const auto scaled = [](float v, float a, float b) { return std::fma(v, a, b); };
  OPFORGE_DISPATCH_DTYPE(
      x, T,
      opforge::broadcast_map(axes, opforge::data<T>(y), scaled, opforge::data<const T>(x),
                             std::array<const T*, 2>{opforge::data<const T>(scale), opforge::data<const T>(shift)}));
}

}  // namespace

OPFORGE_EXPORT(run, scale_shift)
