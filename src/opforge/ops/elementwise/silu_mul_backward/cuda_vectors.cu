// 16-byte accesses, UNROLL vectors of each input in flight per thread: silu_mul_backward(gate, up, dy, dgate, dup).
#include "opforge/numeric/math_device.h"
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 3 <= 16"
*/

namespace {

// y = gate s up with s the sigmoid of gate:  dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
struct Gradients {
  __device__ __forceinline__ void operator()(float gate, float up, float dy, float& dgate, float& dup) const {
    const float e = opforge::exp2_approximate(gate * -1.44269504f), s = opforge::reciprocal_approximate(1.0f + e);
    // 1 - s cancels where s is close to 1, and e s would be infinity times 0 at the other end
    dgate = dy * up * s * fmaf(gate, gate > 0.0f ? e * s : 1.0f - s, 1.0f);
    dup = dy * gate * s;
  }
};

void silu_mul_backward(opforge::TensorView gate, opforge::TensorView up, opforge::TensorView dy, opforge::TensorView dgate, opforge::TensorView dup) {
  opforge::check_same_layout({{"gate", gate}, {"up", up}, {"dy", dy}, {"dgate", dgate}, {"dup", dup}});
  OPFORGE_CHECK_DEVICE(gate);
  if (gate.numel() == 0) return;
  const auto stream = opforge::current_stream(gate);
  OPFORGE_DISPATCH_DTYPE(gate, T, opforge::map<THREADS, UNROLL>(stream, gate.numel(), opforge::Pointers<T, 2>{{opforge::data<T>(dgate), opforge::data<T>(dup)}}, Gradients(),
                                                   opforge::Pointers<const T, 3>{{opforge::data<const T>(gate), opforge::data<const T>(up), opforge::data<const T>(dy)}}));
}

}  // namespace

OPFORGE_EXPORT(run, silu_mul_backward)
