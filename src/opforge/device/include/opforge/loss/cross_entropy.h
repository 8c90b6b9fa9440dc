// opforge/loss/cross_entropy.h - what cross-entropy and its gradient need to know of a row of scores.
#ifndef OPFORGE_CROSS_ENTROPY_ROWS_H_
#define OPFORGE_CROSS_ENTROPY_ROWS_H_

#include "opforge/rows/softmax.h"
#include "opforge/loss/targets.h"

namespace opforge {

/// The maximum, the sum of exp(x - top), and (for label smoothing) the plain sum of all scores.
struct ScoreStat {
  float top, sum, all;
};

template <typename T>
struct CrossEntropyRows {
  static constexpr float kOutside = SoftmaxRows::kOutside;
  Rows<const T> x;
  const int64_t* target;
  int64_t ignore_index;
  float smoothing, per_class;

  void set(const TensorView& scores, const TensorView& targets, int64_t ignored, double label_smoothing) {
    x = as_rows<const T>(scores);
    target = data<const int64_t>(targets);
    ignore_index = ignored;
    smoothing = static_cast<float>(label_smoothing);
    per_class = 1.0f / static_cast<float>(x.cols);
  }

  __device__ static __forceinline__ ScoreStat empty() { return {Max::identity, 0.0f, 0.0f}; }
  template <class Row>
  __device__ __forceinline__ ScoreStat gather(const Row& row) const {
    const TopAndSum part = SoftmaxRows::gather(row);
    float all = 0.0f;
    if (smoothing != 0.0f) {
      row.visit([&](int c, const auto& values) {
        for (float v : values) {
          // what stands beyond the ends of a row is -inf, as a masked class may be
          if (c >= 0 && c < row.cols) all += v;
          ++c;
        }
      });
    }
    return {part.top, part.sum, warp_reduce_sum(all)};
  }
  __device__ static __forceinline__ ScoreStat merge_lanes(ScoreStat part) {
    const TopAndSum merged = SoftmaxRows::merge_lanes({part.top, part.sum});
    return {merged.top, merged.sum, warp_reduce_sum(part.all)};
  }
};

}  // namespace opforge

#endif  // OPFORGE_CROSS_ENTROPY_ROWS_H_
