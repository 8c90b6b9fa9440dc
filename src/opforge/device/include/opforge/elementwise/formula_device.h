// opforge/elementwise/formula_device.h - what formulas need on the GPU: the larger and the smaller of two with NaN handed on, also of a row's threads.
#ifndef OPFORGE_ELEMENTWISE_FORMULA_DEVICE_H_
#define OPFORGE_ELEMENTWISE_FORMULA_DEVICE_H_

#include <cmath>

#include "opforge/device.h"

namespace opforge {

/// The larger of two, NaN when either is: fmaxf drops NaN.
__device__ __forceinline__ float larger(float a, float b) { return (a > b) || (a != a) ? a : b; }
/// The smaller of two, NaN when either is.
__device__ __forceinline__ float smaller(float a, float b) { return (a < b) || (a != a) ? a : b; }
/// 1 / (1 + exp(-x)); 0 where exp overflows.
__device__ __forceinline__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

/// `larger` and `smaller` over the threads that share a row.
struct Larger {
  static constexpr float identity = -INFINITY;
  __device__ __forceinline__ float operator()(float a, float b) const { return larger(a, b); }
};
struct Smaller {
  static constexpr float identity = INFINITY;
  __device__ __forceinline__ float operator()(float a, float b) const { return smaller(a, b); }
};

}  // namespace opforge

#endif  // OPFORGE_ELEMENTWISE_FORMULA_DEVICE_H_
