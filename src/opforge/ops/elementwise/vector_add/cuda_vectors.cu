// 16-byte accesses, UNROLL vectors of each input in flight per thread: vector_add(x, y, z).
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 2 <= 16"
*/

namespace {

struct Add {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

void vector_add(opforge::TensorView x, opforge::TensorView y, opforge::TensorView z) {
  opforge::map_tensors<THREADS, UNROLL>(Add(), {"z", z}, {"x", x}, {"y", y});
}

}  // namespace

OPFORGE_EXPORT(run, vector_add)
