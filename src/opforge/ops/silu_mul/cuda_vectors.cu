// 16-byte accesses, UNROLL vectors of each input in flight per thread: silu_mul(gate, up, y).
#include "opforge/device_math.h"
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

struct Gated {
  __device__ __forceinline__ float operator()(float gate, float up) const { return gate * opforge::sigmoid(gate) * up; }
};

void silu_mul(opforge::TensorView gate, opforge::TensorView up, opforge::TensorView y) {
  opforge::check_alike({{"gate", gate}, {"up", up}, {"y", y}});
  OPFORGE_CHECK_DEVICE(gate);
  if (gate.numel() == 0) return;
  const auto stream = opforge::current_stream(gate);
  OPFORGE_DISPATCH_DTYPE(gate, T, opforge::map<THREADS, UNROLL>(stream, gate.numel(), opforge::data<T>(y), Gated(), opforge::data<const T>(gate), opforge::data<const T>(up)));
}

}  // namespace

OPFORGE_EXPORT(run, silu_mul)
