// One parallel pass in float32 vectors: add_scalar(x, y, value).
#include "opforge/alike.h"
#include "opforge/elementwise_host.h"

/* opforge
any_rank = true
*/

namespace {

void add_scalar(opforge::TensorView x, opforge::TensorView y, double value) {
  opforge::check_alike({{"x", x}, {"y", y}});
  const float number = static_cast<float>(value);
  const auto shifted = [number](float v) { return v + number; };
  OPFORGE_DISPATCH_DTYPE(x, T, opforge::map(x.numel(), opforge::data<T>(y), shifted, opforge::data<const T>(x)));
}

}  // namespace

OPFORGE_EXPORT(run, add_scalar)
