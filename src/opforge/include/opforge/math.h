// opforge/math.h - exp, tanh and erf in float32 on the host, without branches or
// tables, so that a loop over them vectorises (libm's are called one by one).
//
// The largest errors, over every float32, against double precision:
//   exp   1.1 ulp, overflows to infinity and underflows to zero through the subnormals
//   tanh  5.4 ulp
//   erf   6.1 ulp
// NaN gives NaN, infinities their limits; tanh and erf never leave [-1, 1] and keep the sign of zero.
// The coefficients come from tools/fit_math.py.  Compile without -ffast-math.
#ifndef OPFORGE_MATH_H_
#define OPFORGE_MATH_H_

#include <cmath>
#include <cstdint>

#include "opforge/half.h"

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
  float p = 0x1.6c697cp-10f;
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

/// The hyperbolic tangent of x.
inline float tanh(float x) {
  // from here on the result rounds to 1
  x = x > 9.0625f ? 9.0625f : x;
  x = x < -9.0625f ? -9.0625f : x;
  const float t = x * x;
  float p = 0x1.c711c4p-27f;
  p = std::fma(p, t, 0x1.586de4p-16f);
  p = std::fma(p, t, 0x1.c98a86p-9f);
  p = std::fma(p, t, 0x1.11f5d0p-3f);
  p = std::fma(p, t, 1.0f);
  float q = 0x1.9f13fap-21f;
  q = std::fma(q, t, 0x1.57b222p-12f);
  q = std::fma(q, t, 0x1.a7aaeep-6f);
  q = std::fma(q, t, 0x1.de5030p-2f);
  q = std::fma(q, t, 1.0f);
  const float y = x * p / q;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

/// The error function, 2/sqrt(pi) times the integral of exp(-u^2) from 0 to x.
inline float erf(float x) {
  // from here on the result rounds to 1
  x = x > 3.9375f ? 3.9375f : x;
  x = x < -3.9375f ? -3.9375f : x;
  const float t = x * x;
  float p = 0x1.113f6ap-19f;
  p = std::fma(p, t, 0x1.2a91f4p-12f);
  p = std::fma(p, t, 0x1.f0bc24p-9f);
  p = std::fma(p, t, 0x1.b0b4a8p-5f);
  p = std::fma(p, t, 0x1.874acap-3f);
  p = std::fma(p, t, 0x1.20dd74p+0f);
  float q = 0x1.3e3d9cp-15f;
  q = std::fma(q, t, 0x1.31f4b0p-10f);
  q = std::fma(q, t, 0x1.ec1c16p-7f);
  q = std::fma(q, t, 0x1.d47198p-4f);
  q = std::fma(q, t, 0x1.015c18p-1f);
  q = std::fma(q, t, 1.0f);
  const float y = x * p / q;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

}  // namespace opforge

#endif  // OPFORGE_MATH_H_
