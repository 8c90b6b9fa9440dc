// opforge/rows/softmax.h - the maximum of a row and the sum of its exponentials, in one exchange between warps.
//
// source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018: the merge
#ifndef OPFORGE_SOFTMAX_ROWS_H_
#define OPFORGE_SOFTMAX_ROWS_H_

#include "opforge/numeric/math_device.h"
#include "opforge/rows/onchip.h"

namespace opforge {

constexpr float kLog2e = 1.44269504f;

/// exp(x - top) as one multiply-add and one exp2. The shift is top * log2(e), rounded: the same for every element, so that what
/// the rounding does to one it does to all, and a quotient of two has the error of (x - top) alone.
struct Shift {
  float slope, offset;

  __device__ explicit __forceinline__ Shift(float top)
      // what the rounding leaves reaches 64 at 2^30, and exp2 of it would overflow from 2^31 on. Past 2^30 elements differ by 0 or
      // by 64 and more: any slope gives 1 or 0, and the product with 1 is exact
      : slope(fabsf(top) > 1073741824.0f ? 1.0f : kLog2e) {
    // rounded wherever it is used: contracted with a difference it would be exact there, and off by half an ulp of itself from all others
    offset = __fmul_rn(top, slope);
  }
  __device__ __forceinline__ float exp(float x) const { return exp2_approximate(fmaf(x, slope, -offset)); }
  /// log(sum(exp(x - top))) for the sum of these exponentials: the rounding of the shift is in it, and is taken off.
  __device__ __forceinline__ float log_of(float sum, float top) const { return fmaf(fmaf(top, slope, -offset), -0.693147181f, logf(sum)); }
};

/// The maximum of some elements and the sum of Shift(top).exp(x). NaN is no maximum and makes the sum NaN; a maximum of -inf
/// counts as the lowest float, so that the terms below it are 0.
struct TopAndSum {
  float top, sum;
};

/// What softmax, log_softmax and cross-entropy have in common.
struct SoftmaxRows {
  static constexpr float kOutside = -INFINITY;
  using Stat = TopAndSum;
  __device__ static __forceinline__ Stat empty() { return {Max::identity, 0.0f}; }

  template <class Row>
  __device__ static __forceinline__ Stat gather(const Row& row) {
    float top = Max::identity;
    row.visit([&](int, const auto& x) {
      for (float v : x) top = fmaxf(top, v);
    });
    top = warp_reduce_max(top);
    const Shift shift(top);
    float sum = 0.0f;
    row.visit([&](int, const auto& x) {
      for (float v : x) sum += shift.exp(v);
    });
    return {top, warp_reduce_sum(sum)};
  }
  __device__ static __forceinline__ Stat merge_lanes(Stat part) {
    const float top = warp_reduce_max(part.top);
    const Shift shift(top);
    // the difference of the two shifts, each as it was used
    return {top, warp_reduce_sum(part.sum * exp2_approximate(__fmul_rn(part.top, shift.slope) - shift.offset))};
  }
};

}  // namespace opforge

#endif  // OPFORGE_SOFTMAX_ROWS_H_
