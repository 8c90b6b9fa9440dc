// opforge/experts/routing_host.h - weights of chosen experts on the CPU.
#ifndef OPFORGE_EXPERTS_ROUTING_HOST_H_
#define OPFORGE_EXPERTS_ROUTING_HOST_H_

#include <algorithm>

#include "opforge/experts/checks.h"
#include "opforge/rows/softmax_host.h"

namespace opforge {

/// The weights of the k logits in `picked`; `row` is the whole row, for softmax over all experts. Sigmoids that are normalised are taken in units of exp(largest), at
/// most 1, so that small ones do not vanish.
template <typename T>
inline void expert_weights(const T* row, int64_t experts, const float* picked, int64_t k, bool sigmoid, bool normalise,
                           float* weights) {
  float top = *std::max_element(picked, picked + k), total = 0.0f;
  if (!sigmoid && !normalise) {
    const TopAndSum found = top_and_sum(row, experts);
    top = found.top;
    total = found.sum;
  }
  const float unit = normalise ? std::min(top, 0.0f) : 0.0f;
  float sum = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    const float x = picked[i];
    weights[i] = sigmoid ? std::exp(std::min(x, 0.0f) - unit) / (1.0f + std::exp(-std::fabs(x))) : std::exp(x - top);
    sum += weights[i];
  }
  if (normalise || !sigmoid) {
    const float by = normalise ? sum : total;
    for (int64_t i = 0; i < k; ++i) weights[i] /= by;
  }
}

}  // namespace opforge

#endif  // OPFORGE_EXPERTS_ROUTING_HOST_H_
