// 16-byte accesses, UNROLL vectors of each input in flight per thread: vector_add(x, y, z).
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

struct Add {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

void vector_add(opforge::TensorView x, opforge::TensorView y, opforge::TensorView z) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_SHAPE(x, z);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, z);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_CONTIGUOUS(z);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(y);
  OPFORGE_CHECK_DEVICE(z);
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T,
                         opforge::map<THREADS, UNROLL>(opforge::current_stream(x), x.numel(), opforge::data<T>(z), Add(),
                                                       opforge::data<const T>(x), opforge::data<const T>(y)));
}

}  // namespace

OPFORGE_EXPORT(run, vector_add)
