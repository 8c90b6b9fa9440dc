// Long rows where they lie, short ones in stretches with b laid out beside them once: broadcast_add(x, b, y).
#include "opforge/alike.h"
#include "opforge/broadcast_host.h"

namespace {

void broadcast_add(opforge::TensorView x, opforge::TensorView b, opforge::TensorView y) {
  opforge::check_alike({{"x", x}, {"y", y}});
  OPFORGE_CHECK_NDIM(x, 4);
  OPFORGE_CHECK_NDIM(b, 4);
  OPFORGE_CHECK_SAME_DTYPE(x, b);
  OPFORGE_CHECK_CONTIGUOUS(b);
  opforge::BroadcastAxes axes;
  int64_t step = 1;
  for (int k = 3; k >= 0; --k) {
    OPFORGE_CHECK(b.size(k) == x.size(k) || b.size(k) == 1, ValueError, "axis ", k, " of b must be ", x.size(k), " or 1 (got ", b.size(k), ")");
    axes.push(x.size(k), b.size(k) == 1 ? 0 : step);
    step *= b.size(k);
  }
  if (x.numel() == 0) return;
  const auto add = [](float v, float w) { return v + w; };
  OPFORGE_DISPATCH_DTYPE(
      x, T, opforge::broadcast_map(axes, opforge::data<T>(y), add, opforge::data<const T>(x), std::array<const T*, 1>{opforge::data<const T>(b)}));
}

}  // namespace

OPFORGE_EXPORT(run, broadcast_add)
