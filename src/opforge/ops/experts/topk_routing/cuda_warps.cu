// A warp takes a row: its logits stay in registers, and k times the lanes agree on the largest that is left, the first of equal ones.
//
// moves     logits once, k weights and places a row: the least possible
// limits    1024 experts, 32 places
/* opforge
like = "opforge/experts/routing_device.h"
*/
#include <type_traits>

#include "opforge/experts/routing_device.h"

namespace {

template <typename T, int Per>
__global__ void __launch_bounds__(THREADS) choose(opforge::Rows<const T> logits, float* weights, int64_t* chosen,
                                                  opforge::Routing routing) {
  constexpr int kWarp = opforge::kWarpSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (THREADS / kWarp) + threadIdx.x / kWarp;
  // whole warps leave together
  if (row >= logits.rows) return;
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(logits.cols);
  float x[Per];
  opforge::load_logits(logits.data + row * logits.stride, experts, x);
  float top = 0.0f, total = 1.0f;
  if (!routing.sigmoid && !routing.normalise) opforge::top_and_total(x, top, total);
  unsigned taken = 0;
  float mine = 0.0f;
  int place = 0;
  for (int i = 0; i < routing.k; ++i) {
    float best = -INFINITY;
    int at = 0x7fffffff;
#pragma unroll
    for (int j = 0; j < Per; ++j) {
      const int col = lane + j * kWarp;
      // the first one that is left stands even where it is -infinity or NaN
      if (col < experts && !(taken >> j & 1u) && (at == 0x7fffffff || x[j] > best)) best = x[j], at = col;
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(opforge::kFullMask, best, step);
      const int other_at = __shfl_xor_sync(opforge::kFullMask, at, step);
      if (other_at != 0x7fffffff && (at == 0x7fffffff || other > best || (!(best > other) && other_at < at)))
        best = other, at = other_at;
    }
    // of NaN lanes may differ: the first lane decides
    at = __shfl_sync(opforge::kFullMask, at, 0);
    best = __shfl_sync(opforge::kFullMask, best, 0);
    if (at % kWarp == lane) taken |= 1u << (at / kWarp);
    if (lane == i) mine = best, place = at;
  }
  const bool there = lane < routing.k;
  const float weight = opforge::weight_of(mine, there, routing, top, total);
  if (!there) return;
  weights[row * routing.k + lane] = weight;
  chosen[row * routing.k + lane] = place;
}

void topk_routing(opforge::TensorView logits, opforge::TensorView weights, opforge::TensorView chosen, int64_t k,
                  int64_t score, bool normalise) {
  opforge::check_routing({"logits", logits}, {"weights", weights}, {"chosen", chosen}, k);
  opforge::check_device({"logits", logits});
  OPFORGE_CHECK(k <= opforge::kWarpSize && logits.size(1) <= 1024, ValueError, "a warp has 32 places and 1024 experts");
  if (logits.size(0) == 0) return;
  const opforge::Routing routing{static_cast<int>(k), score == 1, normalise};
  OPFORGE_DISPATCH_DTYPE(logits, T, opforge::for_experts(logits.size(1), [&](auto per) {
                           OPFORGE_LAUNCH((choose<T, decltype(per)::value>),
                                          opforge::routing_grid(logits.size(0), THREADS), THREADS, 0,
                                          opforge::current_stream(logits), opforge::as_rows<const T>(logits),
                                          opforge::data<float>(weights), opforge::data<int64_t>(chosen), routing);
                         }));
}

}  // namespace

OPFORGE_EXPORT(run, topk_routing)
