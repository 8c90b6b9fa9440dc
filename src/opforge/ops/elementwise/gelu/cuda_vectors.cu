// 16-byte accesses, UNROLL vectors in flight per thread; one exp2 and one reciprocal an element: gelu(x, y, approximate).
#include "opforge/numeric/math_device.h"
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 1 <= 16"
*/

namespace {

struct ByErf {
  __device__ __forceinline__ float operator()(float x) const { return x * opforge::normal_cdf(x); }
};

// 0.5 x (1 + tanh u) is x / (1 + exp(-2u)): one exp in place of a tanh, and no sum that cancels.
// Where exp overflows, the quotient is -0, as it should be.
struct ByTanh {
  __device__ __forceinline__ float operator()(float x) const {
    // -2u log2(e) = -x (2 sqrt(2/pi) + 2 sqrt(2/pi) 0.044715 x^2) log2(e)
    const float exponent = x * fmaf(-0.10294324f * x, x, -2.3022082f);
    return x * opforge::reciprocal_approximate(1.0f + opforge::exp2_approximate(exponent));
  }
};

void gelu(opforge::TensorView x, opforge::TensorView y, int64_t approximate) {
  OPFORGE_CHECK(approximate == 0 || approximate == 1, ValueError, "approximate must be 0 (none) or 1 (tanh), not ", approximate);
  if (approximate == 1)
    opforge::map_tensors<THREADS, UNROLL>(ByTanh(), {"y", y}, {"x", x});
  else
    opforge::map_tensors<THREADS, UNROLL>(ByErf(), {"y", y}, {"x", x});
}

}  // namespace

OPFORGE_EXPORT(run, gelu)
