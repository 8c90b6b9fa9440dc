// 16-byte accesses, UNROLL vectors in flight per thread: add_scalar(x, y, value).
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 1 <= 16"
*/

namespace {

struct Shift {
  float value;
  __device__ __forceinline__ float operator()(float x) const { return x + value; }
};

void add_scalar(opforge::TensorView x, opforge::TensorView y, double value) {
  opforge::map_tensors<THREADS, UNROLL>(Shift{static_cast<float>(value)}, {"y", y}, {"x", x});
}

}  // namespace

OPFORGE_EXPORT(run, add_scalar)
