// 16-byte accesses, UNROLL vectors in flight per thread: silu(x, y).
#include "opforge/device_math.h"
#include "opforge/elementwise_device.h"

/* opforge
any_rank = true
default = { THREADS = 256, UNROLL = 1 }
[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4, 8]
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 1 <= 16"
*/

namespace {

struct Silu {
  __device__ __forceinline__ float operator()(float x) const { return x * opforge::sigmoid(x); }
};

void silu(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_alike({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  if (x.numel() == 0) return;
  const auto stream = opforge::current_stream(x);
  OPFORGE_DISPATCH_DTYPE(x, T, opforge::map<THREADS, UNROLL>(stream, x.numel(), opforge::data<T>(y), Silu(), opforge::data<const T>(x)));
}

}  // namespace

OPFORGE_EXPORT(run, silu)
