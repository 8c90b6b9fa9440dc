// Row by row: the k largest so far are kept in order while the row is read once; an equal one that comes later goes behind.
//
// moves     logits once, k weights and places a row: the least possible
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <vector>

#include "opforge/experts/routing_host.h"

namespace {

template <typename T>
void choose(const opforge::Rows<const T>& logits, float* weights, int64_t* chosen, int64_t k, bool sigmoid,
            bool normalise) {
  opforge::parallel_for(0, logits.rows, opforge::rows_for_a_thread(4 * logits.cols), [&](int64_t first, int64_t last) {
    std::vector<float> best(k), wide(logits.cols);
    std::vector<int64_t> places(k);
    for (int64_t r = first; r < last; ++r) {
      const T* row = logits.data + r * logits.stride;
      const float* x = opforge::row_as_float(row, wide.data(), logits.cols);
      int64_t kept = 0;
      for (int64_t c = 0; c < logits.cols; ++c) {
        if (kept == k && !(x[c] > best[k - 1])) continue;
        int64_t at = kept < k ? kept++ : k - 1;
        for (; at > 0 && x[c] > best[at - 1]; --at) best[at] = best[at - 1], places[at] = places[at - 1];
        best[at] = x[c];
        places[at] = c;
      }
      opforge::expert_weights(row, logits.cols, best.data(), k, sigmoid, normalise, weights + r * k);
      std::copy(places.begin(), places.end(), chosen + r * k);
    }
  });
}

void topk_routing(opforge::TensorView logits, opforge::TensorView weights, opforge::TensorView chosen, int64_t k,
                  int64_t score, bool normalise) {
  opforge::check_routing({"logits", logits}, {"weights", weights}, {"chosen", chosen}, k);
  OPFORGE_DISPATCH_DTYPE(logits, T,
                         choose(opforge::as_rows<const T>(logits), opforge::data<float>(weights),
                                opforge::data<int64_t>(chosen), k, score == 1, normalise));
}

}  // namespace

OPFORGE_EXPORT(run, topk_routing)
