// One parallel pass in float32 vectors, with an exp that vectorises: silu_mul(gate, up, y).
#include "opforge/elementwise_host.h"
#include "opforge/math.h"

/* opforge
any_rank = true
*/

namespace {

void silu_mul(opforge::TensorView gate, opforge::TensorView up, opforge::TensorView y) {
  OPFORGE_CHECK_SAME_SHAPE(gate, up);
  OPFORGE_CHECK_SAME_SHAPE(gate, y);
  OPFORGE_CHECK_SAME_DTYPE(gate, up);
  OPFORGE_CHECK_SAME_DTYPE(gate, y);
  OPFORGE_CHECK_CONTIGUOUS(gate);
  OPFORGE_CHECK_CONTIGUOUS(up);
  OPFORGE_CHECK_CONTIGUOUS(y);
  const auto gated = [](float g, float u) {
    const opforge::Sigmoid s = opforge::sigmoid(g);
    return g * s.share / s.total * u;
  };
  OPFORGE_DISPATCH_DTYPE(gate, T,
                         opforge::map(gate.numel(), opforge::data<T>(y), gated, opforge::data<const T>(gate),
                                      opforge::data<const T>(up)));
}

}  // namespace

OPFORGE_EXPORT(run, silu_mul)
