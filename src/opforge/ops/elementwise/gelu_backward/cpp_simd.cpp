// One parallel pass in float32 vectors, with a Phi and an exp that vectorise: gelu_backward(x, dy, dx, approximate).
#include "opforge/elementwise/host.h"
#include "opforge/numeric/math.h"

/* opforge
any_rank = true
*/

namespace {

// Phi(x) + x phi(x)
inline float by_erf(float x, float dy) {
  const float density = 0.39894228f * opforge::exp_nonpositive(-0.5f * x * x);
  return dy * std::fma(x, density, opforge::normal_cdf(x));
}

// y = x s(2u) with s the sigmoid, so y' = s (1 + x (1 - s) 2u'), 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
inline float by_tanh(float x, float dy) {
  const opforge::Sigmoid fraction = opforge::sigmoid(x * std::fma(0.071354813f * x, x, 1.5957691f));
  const float scale = 1.0f / fraction.total, s = fraction.share * scale, rest = fraction.rest * scale;
  // beyond 20 the sigmoid is 0 or 1, and an infinite u' times its slope would be NaN
  float near = x > 20.0f ? 20.0f : x;
  near = near < -20.0f ? -20.0f : near;
  return dy * s * std::fma(near * rest, std::fma(0.21406444f * near, near, 1.5957691f), 1.0f);
}

void gelu_backward(opforge::TensorView x, opforge::TensorView dy, opforge::TensorView dx, int64_t approximate) {
  OPFORGE_CHECK(approximate == 0 || approximate == 1, ValueError, "approximate must be 0 (none) or 1 (tanh), not ", approximate);
  const auto erf_form = [](float v, float g) { return by_erf(v, g); };
  const auto tanh_form = [](float v, float g) { return by_tanh(v, g); };
  if (approximate == 1)
    opforge::map_tensors(tanh_form, {"dx", dx}, {"x", x}, {"dy", dy});
  else
    opforge::map_tensors(erf_form, {"dx", dx}, {"x", x}, {"dy", dy});
}

}  // namespace

OPFORGE_EXPORT(run, gelu_backward)
