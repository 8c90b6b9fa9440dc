// One parallel pass in float32 vectors, with an exp that vectorises: silu(x, y).
#include "opforge/alike.h"
#include "opforge/elementwise_host.h"
#include "opforge/math.h"

/* opforge
any_rank = true
*/

namespace {

void silu(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_alike({{"x", x}, {"y", y}});
  const auto silu = [](float v) {
    const opforge::Sigmoid s = opforge::sigmoid(v);
    return v * s.share / s.total;
  };
  OPFORGE_DISPATCH_DTYPE(x, T, opforge::map(x.numel(), opforge::data<T>(y), silu, opforge::data<const T>(x)));
}

}  // namespace

OPFORGE_EXPORT(run, silu)
