// One parallel pass in float32 vectors, with an exp that vectorises: silu(x, y).
#include "opforge/elementwise/host.h"
#include "opforge/numeric/math.h"

/* opforge
any_rank = true
*/

namespace {

void silu(opforge::TensorView x, opforge::TensorView y) {
  const auto silu = [](float v) {
    const opforge::Sigmoid s = opforge::sigmoid(v);
    return v * s.share / s.total;
  };
  opforge::map_tensors(silu, {"y", y}, {"x", x});
}

}  // namespace

OPFORGE_EXPORT(run, silu)
