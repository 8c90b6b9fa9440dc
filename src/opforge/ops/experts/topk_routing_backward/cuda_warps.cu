// A warp takes a row: a lane makes the weight of one place again; the row is written with what all experts get, then the chosen ones.
//
// moves     logits once (k of them where the others have no part), k places and gradients a row, dlogits once
// limits    1024 experts, 32 places
/* opforge
like = "opforge/experts/routing_device.h"
*/
#include <type_traits>

#include "opforge/experts/routing_device.h"

namespace {

template <typename T, int Per>
__global__ void __launch_bounds__(THREADS) spread(opforge::Rows<const T> logits, opforge::Rows<const int64_t> chosen,
                                                  opforge::Rows<const float> dweights, T* dlogits,
                                                  opforge::Routing routing) {
  constexpr int kWarp = opforge::kWarpSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (THREADS / kWarp) + threadIdx.x / kWarp;
  // whole warps leave together
  if (row >= logits.rows) return;
  const int lane = threadIdx.x % kWarp, experts = static_cast<int>(logits.cols);
  const T* from = logits.data + row * logits.stride;
  T* to = dlogits + row * experts;
  const bool all = !routing.sigmoid && !routing.normalise;
  float x[Per];
  float top = 0.0f, total = 1.0f;
  if (all) {
    opforge::load_logits(from, experts, x);
    opforge::top_and_total(x, top, total);
  }
  const int64_t place = lane < routing.k ? chosen.data[row * chosen.stride + lane] : -1;
  // a place of no expert has no part
  const bool there = place >= 0 && place < experts;
  const float mine = there ? opforge::load_as_float(from[place]) : 0.0f,
              given = there ? dweights.data[row * dweights.stride + lane] : 0.0f;
  const float own = opforge::weight_of(mine, there, routing, top, total);
  const float sum = opforge::warp_reduce_sum(own * given), level = routing.sigmoid && !routing.normalise ? 0.0f : sum;
#pragma unroll
  for (int j = 0; j < Per; ++j) {
    const int col = lane + j * kWarp;
    if (col < experts) to[col] = opforge::store_from_float<T>(all ? expf(x[j] - top) / total * -level : 0.0f);
  }
  // what other lanes wrote to these places comes before
  __syncwarp();
  const float rest = routing.sigmoid ? expf(-fmaxf(mine, 0.0f)) / (1.0f + expf(-fabsf(mine))) : 1.0f;
  if (there) to[place] = opforge::store_from_float<T>(own * rest * (given - level));
}

void topk_routing_backward(opforge::TensorView logits, opforge::TensorView chosen, opforge::TensorView dweights,
                           opforge::TensorView dlogits, int64_t k, int64_t score, bool normalise) {
  opforge::check_routing({"logits", logits}, {"dweights", dweights}, {"chosen", chosen}, k);
  opforge::check_same_rows({{"logits", logits}, {"dlogits", dlogits}});
  OPFORGE_CHECK_CONTIGUOUS(dlogits);
  opforge::check_device({"logits", logits});
  OPFORGE_CHECK(k <= opforge::kWarpSize && logits.size(1) <= 1024, ValueError, "a warp has 32 places and 1024 experts");
  if (logits.size(0) == 0) return;
  const opforge::Routing routing{static_cast<int>(k), score == 1, normalise};
  OPFORGE_DISPATCH_DTYPE(logits, T, opforge::for_experts(logits.size(1), [&](auto per) {
                           OPFORGE_LAUNCH((spread<T, decltype(per)::value>),
                                          opforge::routing_grid(logits.size(0), THREADS), THREADS, 0,
                                          opforge::current_stream(logits), opforge::as_rows<const T>(logits),
                                          opforge::as_rows<const int64_t>(chosen),
                                          opforge::as_rows<const float>(dweights), opforge::data<T>(dlogits), routing);
                         }));
}

}  // namespace

OPFORGE_EXPORT(run, topk_routing_backward)
