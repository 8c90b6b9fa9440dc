// opforge/rows/softmax_host.h - the maximum of a row and the sum of its exponentials on the CPU, read as they are stored.
#ifndef OPFORGE_HOST_SOFTMAX_H_
#define OPFORGE_HOST_SOFTMAX_H_

#include "opforge/rows/host.h"
#include "opforge/numeric/math.h"

namespace opforge {

/// The maximum of a row and the sum of exp(x - top); -infinity and NaN for a row of -infinity.
struct TopAndSum {
  float top, sum;
};

template <typename T>
inline TopAndSum top_and_sum(const T* row, int64_t cols) {
  const float top = largest(cols, row);
  return {top, sum_map(cols, [top](float v) { return exp_nonpositive(v - top); }, row)};
}

}  // namespace opforge

#endif  // OPFORGE_HOST_SOFTMAX_H_
