// 16-byte accesses, UNROLL vectors of each input in flight per thread: silu_mul(gate, up, y).
#include "opforge/elementwise_device.h"

/* opforge
default = { THREADS = 256, UNROLL = 2 }
[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4]
[limits]
one_block_does_not_outgrow_small_calls = "THREADS * UNROLL <= 1024"
*/

namespace {

struct Gated {
  // where exp overflows, the quotient is -0; the exact value is below 1e-35 there
  __device__ __forceinline__ float operator()(float gate, float up) const {
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
  }
};

void silu_mul(opforge::TensorView gate, opforge::TensorView up, opforge::TensorView y) {
  OPFORGE_CHECK_SAME_SHAPE(gate, up);
  OPFORGE_CHECK_SAME_SHAPE(gate, y);
  OPFORGE_CHECK_SAME_DTYPE(gate, up);
  OPFORGE_CHECK_SAME_DTYPE(gate, y);
  OPFORGE_CHECK_CONTIGUOUS(gate);
  OPFORGE_CHECK_CONTIGUOUS(up);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_DEVICE(gate);
  OPFORGE_CHECK_DEVICE(up);
  OPFORGE_CHECK_DEVICE(y);
  if (gate.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(gate, T,
                         opforge::map<THREADS, UNROLL>(opforge::current_stream(gate), gate.numel(), opforge::data<T>(y), Gated(),
                                                       opforge::data<const T>(gate), opforge::data<const T>(up)));
}

}  // namespace

OPFORGE_EXPORT(run, silu_mul)
