// 16-byte accesses, UNROLL vectors in flight per thread, float32 arithmetic: gelu(x, y, approximate).
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

struct ByErf {
  __device__ __forceinline__ float operator()(float x) const { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
};

// 0.5 x (1 + tanh u) is x / (1 + exp(-2u)): one exp in place of a tanh, and no sum that cancels.
// Where exp overflows, the quotient is -0, as it should be.
struct ByTanh {
  __device__ __forceinline__ float operator()(float x) const {
    const float twice_u = x * fmaf(0.071354813f * x, x, 1.5957691f);
    return __fdividef(x, 1.0f + __expf(-twice_u));
  }
};

void gelu(opforge::TensorView x, opforge::TensorView y, int64_t approximate) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(y);
  OPFORGE_CHECK(approximate == 0 || approximate == 1, ValueError, "approximate must be 0 (none) or 1 (tanh), not ", approximate);
  if (x.numel() == 0) return;
  const auto stream = opforge::current_stream(x);
  OPFORGE_DISPATCH_DTYPE(
      x, T, {
        if (approximate == 1)
          opforge::map<THREADS, UNROLL>(stream, x.numel(), opforge::data<T>(y), ByTanh(), opforge::data<const T>(x));
        else
          opforge::map<THREADS, UNROLL>(stream, x.numel(), opforge::data<T>(y), ByErf(), opforge::data<const T>(x));
      });
}

}  // namespace

OPFORGE_EXPORT(run, gelu)
