// One parallel pass in float32 vectors, with a Phi and an exp that vectorise: gelu(x, y, approximate).
#include "opforge/elementwise/host.h"
#include "opforge/numeric/math.h"

/* opforge
any_rank = true
*/

namespace {

inline float gelu_erf(float x) { return x * opforge::normal_cdf(x); }

// 0.5 x (1 + tanh u) is x times the sigmoid of 2u, which does not cancel.
inline float gelu_tanh(float x) {
  const float twice_u = x * std::fma(0.071354813f * x, x, 1.5957691f);
  const opforge::Sigmoid s = opforge::sigmoid(twice_u);
  return x * s.share / s.total;
}

void gelu(opforge::TensorView x, opforge::TensorView y, int64_t approximate) {
  OPFORGE_CHECK(approximate == 0 || approximate == 1, ValueError, "approximate must be 0 (none) or 1 (tanh), not ", approximate);
  const auto by_erf = [](float v) { return gelu_erf(v); };
  const auto by_tanh = [](float v) { return gelu_tanh(v); };
  if (approximate == 1)
    opforge::map_tensors(by_tanh, {"y", y}, {"x", x});
  else
    opforge::map_tensors(by_erf, {"y", y}, {"x", x});
}

}  // namespace

OPFORGE_EXPORT(run, gelu)
