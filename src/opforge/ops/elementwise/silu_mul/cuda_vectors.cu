// 16-byte accesses, UNROLL vectors of each input in flight per thread: silu_mul(gate, up, y).
#include "opforge/numeric/math_device.h"
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 2 <= 16"
*/

namespace {

struct Gated {
  __device__ __forceinline__ float operator()(float gate, float up) const { return gate * opforge::sigmoid(gate) * up; }
};

void silu_mul(opforge::TensorView gate, opforge::TensorView up, opforge::TensorView y) {
  opforge::map_tensors<THREADS, UNROLL>(Gated(), {"y", y}, {"gate", gate}, {"up", up});
}

}  // namespace

OPFORGE_EXPORT(run, silu_mul)
