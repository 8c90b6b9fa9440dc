// 16-byte accesses, UNROLL vectors in flight per thread: silu(x, y).
#include "opforge/numeric/math_device.h"
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 1 <= 16"
*/

namespace {

struct Silu {
  __device__ __forceinline__ float operator()(float x) const { return x * opforge::sigmoid(x); }
};

void silu(opforge::TensorView x, opforge::TensorView y) {
  opforge::map_tensors<THREADS, UNROLL>(Silu(), {"y", y}, {"x", x});
}

}  // namespace

OPFORGE_EXPORT(run, silu)
