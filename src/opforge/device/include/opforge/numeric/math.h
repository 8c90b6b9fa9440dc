// opforge/numeric/math.h - exp, tanh, erf and the normal distribution function in float32 on the
// host, without branches or tables, so that loops over them vectorise (libm's do not).
//
// The largest errors against double precision, over every float32:
//   exp         1.1 ulp; overflows to infinity, underflows to zero through the subnormals
//   tanh        5.4 ulp
//   erf         4.2 ulp
//   exp_nonpositive  as exp; exactly 0 below -87.69
//   normal_cdf  3.5e-7 absolute; exactly 0 below -5.01
// NaN gives NaN, infinities give the limits; tanh and erf never leave [-1, 1] and keep the
// sign of zero, normal_cdf never leaves [0, 1].  Not for -ffast-math.
// The coefficients come from tools/fit_math.py.
#ifndef OPFORGE_MATH_H_
#define OPFORGE_MATH_H_

#include <cmath>
#include <cstdint>

#include "opforge/numeric/half.h"

namespace opforge {

/// e to the power x.
inline float exp(float x) {
  // beyond these the result is 0 or infinity; asked this way round, NaN stays NaN
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // x = n ln(2) + r.  Adding 1.5 * 2^23 leaves n, rounded, in the low bits of the sum.
  const float magic = 12582912.0f;
  const float shifted = std::fma(x, 0x1.715476p+0f, magic);
  const float n = shifted - magic;
  const float r = std::fma(n, -0x1.0bfbe8p-15f, std::fma(n, -0x1.62ep-1f, x));
  float p = 0x1.6c69fcp-10f;
  p = std::fma(p, r, 0x1.120b28p-7f);
  p = std::fma(p, r, 0x1.5555bap-5f);
  p = std::fma(p, r, 0x1.5554dep-3f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r * r, r);
  // 2^n in two factors, because 2^128 and 2^-150 are no normal numbers
  const int32_t k = detail::bit_cast<int32_t>(shifted) - 0x4b400000;
  const int32_t half = k >> 1;
  const float low = detail::bit_cast<float>((half + 127) << 23);
  const float high = detail::bit_cast<float>((k - half + 127) << 23);
  return std::fma(p, low, low) * high;
}

/// e to the power x for x <= 0: without the factors that exp needs at both ends, so two thirds of its operations.
inline float exp_nonpositive(float x) {
  // from here on the result is 0, which the bits of 2^-127 say below; asked this way round, NaN stays NaN
  x = x < -88.0f ? -88.0f : x;
  const float magic = 12582912.0f;
  const float shifted = std::fma(x, 0x1.715476p+0f, magic);
  const float n = shifted - magic;
  const float r = std::fma(n, -0x1.0bfbe8p-15f, std::fma(n, -0x1.62ep-1f, x));
  float p = 0x1.6c69fcp-10f;
  p = std::fma(p, r, 0x1.120b28p-7f);
  p = std::fma(p, r, 0x1.5555bap-5f);
  p = std::fma(p, r, 0x1.5554dep-3f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r * r, r);
  // the low bits of the sum hold n; those of 1.5 * 2^23 are shifted out
  const float power = detail::bit_cast<float>((detail::bit_cast<uint32_t>(shifted) + 127u) << 23);
  return std::fma(p, power, power);
}

/// s = 1 / (1 + exp(-x)) as a fraction: s is share / total and 1 - s is rest / total.  The exponential is of -|x|, so nothing
/// overflows and nothing cancels; below -87.69, s is 0.
struct Sigmoid {
  float share, rest, total;
};
inline Sigmoid sigmoid(float x) {
  const float e = exp_nonpositive(x > 0.0f ? -x : x);
  return {x > 0.0f ? 1.0f : e, x > 0.0f ? e : 1.0f, 1.0f + e};
}

/// The hyperbolic tangent of x.
inline float tanh(float x) {
  // from here on the result rounds to 1
  x = x > 9.0625f ? 9.0625f : x;
  x = x < -9.0625f ? -9.0625f : x;
  const float t = x * x;
  float p = 0x1.c7058ap-27f;
  p = std::fma(p, t, 0x1.5868f8p-16f);
  p = std::fma(p, t, 0x1.c987fap-9f);
  p = std::fma(p, t, 0x1.11f576p-3f);
  p = std::fma(p, t, 1.0f);
  float q = 0x1.9f0b96p-21f;
  q = std::fma(q, t, 0x1.57aeecp-12f);
  q = std::fma(q, t, 0x1.a7a9b0p-6f);
  q = std::fma(q, t, 0x1.de5004p-2f);
  q = std::fma(q, t, 1.0f);
  const float y = x * p / q;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

/// The error function, 2/sqrt(pi) times the integral of exp(-u^2) from 0 to x.
inline float erf(float x) {
  // from here on the result rounds to 1
  x = x > 3.9375f ? 3.9375f : x;
  x = x < -3.9375f ? -3.9375f : x;
  // erf(x) / x in s = 2 (x / 3.9375)^2 - 1, which runs from -1 to 1: in x^2 itself the terms would cancel
  const float s = std::fma(x * x, 0x1.083106p-3f, -1.0f);
  float p = -0x1.e0e7cap-11f;
  p = std::fma(p, s, 0x1.28dd52p-9f);
  p = std::fma(p, s, -0x1.7a8186p-10f);
  p = std::fma(p, s, 0x1.f843c2p-10f);
  p = std::fma(p, s, -0x1.062a48p-7f);
  p = std::fma(p, s, 0x1.e45418p-7f);
  p = std::fma(p, s, -0x1.4fa10cp-6f);
  p = std::fma(p, s, 0x1.ee7830p-6f);
  p = std::fma(p, s, -0x1.682fc8p-5f);
  p = std::fma(p, s, 0x1.e1c9cap-5f);
  p = std::fma(p, s, -0x1.2fec7ap-4f);
  p = std::fma(p, s, 0x1.72c6cap-4f);
  p = std::fma(p, s, -0x1.bde91cp-4f);
  p = std::fma(p, s, 0x1.118564p-3f);
  p = std::fma(p, s, -0x1.6f4224p-3f);
  p = std::fma(p, s, 0x1.6fc14ap-2f);
  const float y = x * p;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

/// The normal distribution function Phi(x) = (1 + erf(x / sqrt(2))) / 2, with a small absolute error.
inline float normal_cdf(float x) {
  // (Phi(x) - 1/2) / x in s = 2 (x / 5)^2 - 1, as in erf; beyond 5 it keeps its value, and the result its limit
  const float square = x * x;
  const float s = std::fma(square > 25.0f ? 25.0f : square, 0x1.47ae14p-4f, -1.0f);
  float p = 0x1.3f1bc2p-11f;
  p = std::fma(p, s, -0x1.a6e658p-10f);
  p = std::fma(p, s, 0x1.c3ad74p-10f);
  p = std::fma(p, s, -0x1.600382p-9f);
  p = std::fma(p, s, 0x1.a41ac6p-8f);
  p = std::fma(p, s, -0x1.6dd4b0p-7f);
  p = std::fma(p, s, 0x1.0cbc28p-6f);
  p = std::fma(p, s, -0x1.7d3beap-6f);
  p = std::fma(p, s, 0x1.0192f8p-5f);
  p = std::fma(p, s, -0x1.4b4e4ap-5f);
  p = std::fma(p, s, 0x1.a60e5ep-5f);
  p = std::fma(p, s, -0x1.1feefep-4f);
  p = std::fma(p, s, 0x1.218356p-3f);
  const float y = std::fma(x, p, 0.5f);
  return y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
}

}  // namespace opforge

#endif  // OPFORGE_MATH_H_
