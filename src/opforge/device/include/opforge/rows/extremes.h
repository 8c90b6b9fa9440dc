// opforge/rows/extremes.h - the larger and the smaller of two floats and of a row's, with NaN handed on, and the logistic function as one number: on the CPU.
#ifndef OPFORGE_ROWS_EXTREMES_H_
#define OPFORGE_ROWS_EXTREMES_H_

#include <cmath>

#include "opforge/arch/host_lanes.h"
#include "opforge/numeric/math.h"

namespace opforge {

/// The larger of two numbers; NaN when either is, as torch.maximum has it. No branches: loops over it vectorise.
inline float maximum(float a, float b) { return (a > b) | (a != a) ? a : b; }
/// The smaller of two numbers; NaN when either is.
inline float minimum(float a, float b) { return (a < b) | (a != a) ? a : b; }

/// 1 / (1 + exp(-x)), without overflow; 0 below -87.69.
inline float logistic(float x) {
  const Sigmoid s = sigmoid(x);
  return s.share / s.total;
}

/// The largest f(x[i], in[i]...) for i in [0, n), -infinity for none; NaN when one is.
template <typename F, typename T, typename... In>
inline float max_map(int64_t n, const F& f, const T* x, const In*... in) {
  float top = -INFINITY;
  int nan = 0;
#pragma omp simd reduction(max : top) reduction(| : nan)
  for (int64_t i = 0; i < n; ++i) {
    const float v = f(load_as_float(x[i]), load_as_float(in[i])...);
    top = v > top ? v : top;
    nan |= v != v;
  }
  return nan ? NAN : top;
}

/// The smallest f(x[i], in[i]...) for i in [0, n), infinity for none; NaN when one is.
template <typename F, typename T, typename... In>
inline float min_map(int64_t n, const F& f, const T* x, const In*... in) {
  return -max_map(n, [&f](auto... v) { return -f(v...); }, x, in...);
}

}  // namespace opforge

#endif  // OPFORGE_ROWS_EXTREMES_H_
