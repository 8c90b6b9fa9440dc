// 16-byte accesses, UNROLL vectors in flight per thread: relu(x, y).
#include "opforge/elementwise_device.h"

/* opforge
default = { THREADS = 256, UNROLL = 4 }
[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4, 8]
[limits]
one_block_does_not_outgrow_small_calls = "THREADS * UNROLL <= 2048"
*/

namespace {

struct Rectify {
  // fmaxf(x, 0) would turn NaN into 0
  __device__ __forceinline__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
};

void relu(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(y);
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T,
                         opforge::map<THREADS, UNROLL>(opforge::current_stream(x), x.numel(), opforge::data<T>(y), Rectify(),
                                                       opforge::data<const T>(x)));
}

}  // namespace

OPFORGE_EXPORT(run, relu)
