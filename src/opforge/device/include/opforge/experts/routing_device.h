// opforge/experts/routing_device.h - weights of chosen experts on the GPU: a warp takes a row, each lane one of the k places.
/* opforge
layouts = ["contiguous", "rows"]

[supports]
a_lane_a_place = "k <= 32"
a_row_fits_a_warp = "experts <= 1024"

[default]
THREADS = 128

[space]
THREADS = [64, 128, 256]
*/
#ifndef OPFORGE_EXPERTS_ROUTING_DEVICE_H_
#define OPFORGE_EXPERTS_ROUTING_DEVICE_H_

#include "opforge/device.h"
#include "opforge/experts/checks.h"

namespace opforge {

/// What weights are: of softmax or sigmoid, each for itself or divided by the sum of the k.
struct Routing {
  int k;
  bool sigmoid, normalise;
};

/// The logits of a row that a lane keeps, every 32nd; -infinity where there is no expert.
template <typename T, int Per>
__device__ __forceinline__ void load_logits(const T* row, int experts, float (&x)[Per]) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int j = 0; j < Per; ++j)
    x[j] = lane + j * kWarpSize < experts ? load_as_float(row[lane + j * kWarpSize]) : -INFINITY;
}

/// The largest logit of a row, and the sum of exp(x - top), in every lane.
template <int Per>
__device__ __forceinline__ void top_and_total(const float (&x)[Per], float& top, float& total) {
  top = x[0];
#pragma unroll
  for (int j = 1; j < Per; ++j) top = fmaxf(top, x[j]);
  top = warp_reduce_max(top);
  total = 0.0f;
#pragma unroll
  for (int j = 0; j < Per; ++j) total += expf(x[j] - top);
  total = warp_reduce_sum(total);
}

/// The weight of a lane's logit; `there` says whether the lane has one. Sigmoids that are normalised are taken in units of exp(largest), at most 1, so that small ones
/// do not vanish. top and total: of the whole row, for softmax over all experts.
__device__ __forceinline__ float weight_of(float x, bool there, const Routing& routing, float top, float total) {
  const float most = warp_reduce_max(there ? x : Max::identity);
  float size;
  if (routing.sigmoid) {
    size = expf(fminf(x, 0.0f) - (routing.normalise ? fminf(most, 0.0f) : 0.0f)) / (1.0f + expf(-fabsf(x)));
  } else {
    size = expf(x - (routing.normalise ? most : top));
  }
  if (!there) size = 0.0f;
  if (routing.normalise) return size / warp_reduce_sum(size);
  return routing.sigmoid ? size : size / total;
}

/// launch(kernel for rows of up to 32 * Per experts).
template <typename Launch>
inline void for_experts(int64_t experts, const Launch& launch) {
  if (experts <= 32) {
    launch(std::integral_constant<int, 1>());
  } else if (experts <= 128) {
    launch(std::integral_constant<int, 4>());
  } else if (experts <= 256) {
    launch(std::integral_constant<int, 8>());
  } else {
    launch(std::integral_constant<int, 32>());
  }
}

inline unsigned routing_grid(int64_t rows, int threads) {
  const int64_t blocks = ceil_div(rows, threads / kWarpSize);
  OPFORGE_CHECK(blocks < (int64_t(1) << 31), ValueError, "there are too many rows for one launch");
  return static_cast<unsigned>(blocks);
}

}  // namespace opforge

#endif  // OPFORGE_EXPERTS_ROUTING_DEVICE_H_
