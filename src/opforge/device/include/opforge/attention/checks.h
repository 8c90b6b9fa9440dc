// opforge/attention/checks.h - what a query sees, and the checks that attention's kernels begin with, for .cu and .cpp files.
#ifndef OPFORGE_ATTENTION_CHECKS_H_
#define OPFORGE_ATTENTION_CHECKS_H_

#include <algorithm>

#include "opforge/ffi.h"

namespace opforge {
namespace attention {

/// Which keys a query sees: those from first(i) up to, not including, last(i).
struct Reach {
  int64_t keys, shift, left, right;

  Reach(int64_t queries, int64_t keys_, bool causal, int64_t window_left, int64_t window_right, bool bottom_right)
      : keys(keys_),
        shift(bottom_right ? keys_ - queries : 0),
        left(window_left < 0 ? kFar : std::min(window_left, kFar)),
        right(causal ? 0 : window_right < 0 ? kFar : std::min(window_right, kFar)) {}

  int64_t first(int64_t query) const { return std::min(std::max<int64_t>(query + shift - left, 0), keys); }
  int64_t last(int64_t query) const { return std::min(std::max<int64_t>(query + shift + right + 1, 0), keys); }

  static constexpr int64_t kFar = int64_t{1} << 40;
};

inline void check(TensorView q, TensorView k, TensorView v, TensorView out, TensorView lse) {
  OPFORGE_CHECK_NDIM(q, 4);
  OPFORGE_CHECK_NDIM(k, 4);
  OPFORGE_CHECK_NDIM(v, 4);
  OPFORGE_CHECK_NDIM(out, 4);
  OPFORGE_CHECK_NDIM(lse, 3);
  OPFORGE_CHECK_SAME_DTYPE(q, k);
  OPFORGE_CHECK_SAME_DTYPE(q, v);
  OPFORGE_CHECK_SAME_DTYPE(q, out);
  OPFORGE_CHECK_CONTIGUOUS(out);
  OPFORGE_CHECK_CONTIGUOUS(lse);
  OPFORGE_CHECK(q.size(0) == k.size(0) && q.size(0) == v.size(0), ValueError, "q, k and v must have one batch");
  OPFORGE_CHECK(k.size(1) == v.size(1) && k.size(2) == v.size(2), ValueError, "k and v must have the same heads and lengths");
  OPFORGE_CHECK(q.size(3) == k.size(3), ValueError, "q and k must have the same head dimension");
  OPFORGE_CHECK(k.size(1) == 0 ? q.size(1) == 0 : q.size(1) % k.size(1) == 0, ValueError, "q's heads must be a multiple of k's");
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_CHECKS_H_
