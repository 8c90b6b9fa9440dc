// Token by token: the two largest logits in one pass, then the sum of exponentials where it is asked for.
//
// moves     tokens * (experts * itemsize + 2 * (itemsize + 8)) bytes: the least possible
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <cmath>
#include <utility>

#include "opforge/host.h"

namespace {

template <typename T>
void choose(opforge::TensorView logits, T* weights, int64_t* chosen, bool renormalize) {
  const int64_t tokens = logits.size(0), experts = logits.size(1), stride = logits.stride(0);
  const T* source = opforge::data<const T>(logits);
  const int64_t grain = (1 << 14) / (experts + 1) + 1;  // tokens that are worth a thread
  opforge::parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* row = source + t * stride;
      int64_t first = 0, second = 1;
      float top = opforge::load_as_float(row[0]), next = opforge::load_as_float(row[1]);
      if (next > top) {
        std::swap(first, second);
        std::swap(top, next);
      }
      // strictly greater: of equal logits the first stays
      for (int64_t e = 2; e < experts; ++e) {
        const float logit = opforge::load_as_float(row[e]);
        if (logit > top) {
          second = first, next = top;
          first = e, top = logit;
        } else if (logit > next) {
          second = e, next = logit;
        }
      }
      const float behind = std::exp(next - top);
      double total = 1 + behind;
      if (!renormalize) {
        total = 0;
        for (int64_t e = 0; e < experts; ++e) total += std::exp(opforge::load_as_float(row[e]) - top);
      }
      weights[2 * t] = opforge::store_from_float<T>(static_cast<float>(1 / total));
      weights[2 * t + 1] = opforge::store_from_float<T>(static_cast<float>(behind / total));
      chosen[2 * t] = first;
      chosen[2 * t + 1] = second;
    }
  });
}

void run(opforge::TensorView logits, opforge::TensorView weights, opforge::TensorView chosen, bool renormalize) {
  OPFORGE_CHECK_NDIM(logits, 2);
  OPFORGE_CHECK_SAME_DTYPE(logits, weights);
  OPFORGE_CHECK_SAME_SHAPE(weights, chosen);
  OPFORGE_CHECK(logits.size(1) >= 2, ValueError, "there must be two experts");
  OPFORGE_CHECK(logits.stride(1) == 1, ValueError, "rows of logits must be contiguous");
  OPFORGE_CHECK_CONTIGUOUS(weights);
  OPFORGE_CHECK_CONTIGUOUS(chosen);
  OPFORGE_DISPATCH_DTYPE(
      logits, T, choose<T>(logits, opforge::data<T>(weights), opforge::data<int64_t>(chosen), renormalize));
}

}  // namespace

OPFORGE_EXPORT(run, run)
