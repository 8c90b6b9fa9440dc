// Row by row: the k weights made again, and what arrived for them spread over the row.
//
// moves     logits once (k of them where the others have no part), k places and gradients a row, dlogits once
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <vector>

#include "opforge/experts/routing_host.h"

namespace {

template <typename T>
void spread(const opforge::Rows<const T>& logits, const opforge::Rows<const int64_t>& chosen,
            const opforge::Rows<const float>& dweights, T* dlogits, bool sigmoid, bool normalise) {
  const int64_t experts = logits.cols, k = chosen.cols;
  opforge::parallel_for(0, logits.rows, opforge::rows_for_a_thread(experts), [&](int64_t first, int64_t last) {
    std::vector<float> picked(k), own(k);
    for (int64_t r = first; r < last; ++r) {
      const T* row = logits.data + r * logits.stride;
      const int64_t* places = chosen.data + r * chosen.stride;
      const float* given = dweights.data + r * dweights.stride;
      T* out = dlogits + r * experts;
      for (int64_t i = 0; i < k; ++i) {
        OPFORGE_CHECK(places[i] >= 0 && places[i] < experts, ValueError, "there is no expert ", places[i], " of ",
                      experts);
        picked[i] = opforge::load_as_float(row[places[i]]);
      }
      opforge::expert_weights(row, experts, picked.data(), k, sigmoid, normalise, own.data());
      float level = 0.0f;
      if (normalise || !sigmoid)
        for (int64_t i = 0; i < k; ++i) level += own[i] * given[i];
      if (sigmoid || normalise) {
        std::fill_n(out, experts, T());
      } else {
        const opforge::TopAndSum of = opforge::top_and_sum(row, experts);
        const float top = of.top, factor = -level / of.sum;
        opforge::map_row(
            experts, out, [top, factor](float x) { return opforge::exp_nonpositive(x - top) * factor; }, row);
      }
      for (int64_t i = 0; i < k; ++i) {
        const float x = picked[i],
                    rest = sigmoid ? std::exp(-std::max(x, 0.0f)) / (1.0f + std::exp(-std::fabs(x))) : 1.0f;
        out[places[i]] = opforge::store_from_float<T>(own[i] * rest * (given[i] - level));
      }
    }
  });
}

void topk_routing_backward(opforge::TensorView logits, opforge::TensorView chosen, opforge::TensorView dweights,
                           opforge::TensorView dlogits, int64_t k, int64_t score, bool normalise) {
  opforge::check_routing({"logits", logits}, {"dweights", dweights}, {"chosen", chosen}, k);
  opforge::check_same_rows({{"logits", logits}, {"dlogits", dlogits}});
  OPFORGE_CHECK_CONTIGUOUS(dlogits);
  OPFORGE_DISPATCH_DTYPE(
      logits, T,
      spread(opforge::as_rows<const T>(logits), opforge::as_rows<const int64_t>(chosen),
             opforge::as_rows<const float>(dweights), opforge::data<T>(dlogits), score == 1, normalise));
}

}  // namespace

OPFORGE_EXPORT(run, topk_routing_backward)
