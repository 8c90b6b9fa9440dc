// One parallel pass in float32 vectors, with an exp that vectorises: silu_mul(gate, up, y).
#include "opforge/elementwise/host.h"
#include "opforge/numeric/math.h"

/* opforge
any_rank = true
*/

namespace {

void silu_mul(opforge::TensorView gate, opforge::TensorView up, opforge::TensorView y) {
  const auto gated = [](float g, float u) {
    const opforge::Sigmoid s = opforge::sigmoid(g);
    return g * s.share / s.total * u;
  };
  opforge::map_tensors(gated, {"y", y}, {"gate", gate}, {"up", up});
}

}  // namespace

OPFORGE_EXPORT(run, silu_mul)
