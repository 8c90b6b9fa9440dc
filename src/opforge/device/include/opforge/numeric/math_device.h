// opforge/numeric/math_device.h - exp2, sigmoid and the normal distribution function on the GPU, in as few
// instructions as float32 accuracy allows, so that elementwise kernels in 16 bits stay bound by memory.
//
// An SM issues 128 float32 operations and 16 special ones (exp2, 1/x) a clock.  At 4.2 TB/s an H200 moves
// about 4.5 bfloat16 elements in and out per SM and clock: 28 operations and 3.5 special ones an element.
// __expf and a division take two special ones each of about six ordinary ones, for operands near the
// subnormals; the .ftz forms here take one instruction each and flush those to zero.
//
// Errors against double precision, from those that the PTX manual grants ex2.approx and rcp.approx (2 ulp and 1):
//   sigmoid     4 ulp, and |x| ulp of the argument; 0 below -87.3
//   normal_cdf  3e-7 absolute (2.5e-7 of it is rounding in float32, near 0); 0 below -13.2
#ifndef OPFORGE_DEVICE_MATH_H_
#define OPFORGE_DEVICE_MATH_H_

#include "opforge/device.h"

namespace opforge {

/// 2 to the power x, within 2 ulp; subnormal results are 0.
__device__ __forceinline__ float exp2_approximate(float x) {
#ifdef OPFORGE_EMULATE
  const float y = std::exp2(x);
  return y < 1.17549435e-38f ? 0.0f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// 1 / x, within 1 ulp; subnormal results are 0, 1 / 0 is infinity.
__device__ __forceinline__ float reciprocal_approximate(float x) {
#ifdef OPFORGE_EMULATE
  const float y = 1.0f / x;
  return std::fabs(y) < 1.17549435e-38f ? std::copysign(0.0f, y) : y;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// 1 / (1 + exp(-x)).
__device__ __forceinline__ float sigmoid(float x) { return reciprocal_approximate(1.0f + exp2_approximate(x * -1.44269504f)); }

/// The density of the normal distribution, exp(-x^2 / 2) / sqrt(2 pi).
__device__ __forceinline__ float normal_density(float x) { return 0.39894228f * exp2_approximate(x * x * -0.72134752f); }

/// The normal distribution function: for |x|, one minus exp(-x^2/2) times a polynomial of 1 / (1 + p |x|).
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 1964, 7.1.26, with the argument scaled by 1/sqrt(2).
__device__ __forceinline__ float normal_cdf(float x) {
  const float t = reciprocal_approximate(fmaf(0.23164189f, fabsf(x), 1.0f));
  const float e = exp2_approximate(x * x * -0.72134752f);
  float p = 0.530702715f;
  p = fmaf(p, t, -0.726576014f);
  p = fmaf(p, t, 0.710706871f);
  p = fmaf(p, t, -0.142248368f);
  p = fmaf(p, t, 0.127414796f);
  const float tail = p * t * e;
  return x > 0.0f ? 1.0f - tail : tail;
}

}  // namespace opforge

#endif  // OPFORGE_DEVICE_MATH_H_
