// 16-byte accesses, UNROLL vectors in flight per thread: relu(x, y).
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 1 <= 16"
*/

namespace {

struct Rectify {
  // fmaxf(x, 0) would turn NaN into 0
  __device__ __forceinline__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
};

void relu(opforge::TensorView x, opforge::TensorView y) {
  opforge::map_tensors<THREADS, UNROLL>(Rectify(), {"y", y}, {"x", x});
}

}  // namespace

OPFORGE_EXPORT(run, relu)
