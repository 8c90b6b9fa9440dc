// opforge/norm/wide.h - the moments of a wide row (opforge/rows/wide.h), in one exchange.
#ifndef OPFORGE_WIDE_NORM_ROWS_H_
#define OPFORGE_WIDE_NORM_ROWS_H_

#include "opforge/norm/rows.h"
#include "opforge/rows/wide.h"

namespace opforge {

/// What layernorm and rmsnorm have in common. kCentred: whether the mean counts; otherwise it is 0.
template <bool kCentred>
struct WideMoments {
  using Stat = Moments;
  __device__ static __forceinline__ Stat empty() { return {0.0f, 0.0f, 0.0f}; }
  template <class Row>
  __device__ static __forceinline__ Stat gather(const Row& row) { return moments_of_warp<kCentred>(row); }
  __device__ static __forceinline__ Stat merge_lanes(const Stat& part) { return merge_moments<kCentred>(part); }
};

}  // namespace opforge

#endif  // OPFORGE_WIDE_NORM_ROWS_H_
