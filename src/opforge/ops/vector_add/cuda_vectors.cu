// 16-byte accesses, UNROLL vectors of each input in flight per thread: vector_add(x, y, z).
#include "opforge/elementwise_device.h"

/* opforge
any_rank = true
default = { THREADS = 256, UNROLL = 1 }
[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4, 8]
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 2 <= 16"
*/

namespace {

struct Add {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

void vector_add(opforge::TensorView x, opforge::TensorView y, opforge::TensorView z) {
  opforge::check_alike({{"x", x}, {"y", y}, {"z", z}});
  OPFORGE_CHECK_DEVICE(x);
  if (x.numel() == 0) return;
  const auto stream = opforge::current_stream(x);
  OPFORGE_DISPATCH_DTYPE(x, T, opforge::map<THREADS, UNROLL>(stream, x.numel(), opforge::data<T>(z), Add(), opforge::data<const T>(x), opforge::data<const T>(y)));
}

}  // namespace

OPFORGE_EXPORT(run, vector_add)
