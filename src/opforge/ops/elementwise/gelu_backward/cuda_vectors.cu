// 16-byte accesses, UNROLL vectors of each input in flight per thread: gelu_backward(x, dy, dx, approximate).
#include "opforge/numeric/math_device.h"
#include "opforge/elementwise/device.h"

/* opforge
like = "opforge/elementwise/device.h"
[limits]
the_inputs_in_flight_fit_the_registers = "UNROLL * 2 <= 16"
*/

namespace {

// Phi(x) + x phi(x)
struct ByErf {
  __device__ __forceinline__ float operator()(float x, float dy) const { return dy * fmaf(x, opforge::normal_density(x), opforge::normal_cdf(x)); }
};

// y = x s(2u) with s the sigmoid, so y' = s (1 + x (1 - s) 2u'), 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
struct ByTanh {
  __device__ __forceinline__ float operator()(float x, float dy) const {
    const float e = opforge::exp2_approximate(x * fmaf(-0.10294324f * x, x, -2.3022082f)), s = opforge::reciprocal_approximate(1.0f + e);
    // 1 - s cancels where s is close to 1, and e s would be infinity times 0 at the other end
    const float rest = x > 0.0f ? e * s : 1.0f - s;
    // beyond 20 the sigmoid is 0 or 1, and an infinite u' times its slope would be NaN
    const float near = fminf(fmaxf(x, -20.0f), 20.0f);
    return dy * s * fmaf(near * rest, fmaf(0.21406444f * near, near, 1.5957691f), 1.0f);
  }
};

void gelu_backward(opforge::TensorView x, opforge::TensorView dy, opforge::TensorView dx, int64_t approximate) {
  OPFORGE_CHECK(approximate == 0 || approximate == 1, ValueError, "approximate must be 0 (none) or 1 (tanh), not ", approximate);
  if (approximate == 1)
    opforge::map_tensors<THREADS, UNROLL>(ByTanh(), {"dx", dx}, {"x", x}, {"dy", dy});
  else
    opforge::map_tensors<THREADS, UNROLL>(ByErf(), {"dx", dx}, {"x", x}, {"dy", dy});
}

}  // namespace

OPFORGE_EXPORT(run, gelu_backward)
