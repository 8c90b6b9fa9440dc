// One parallel pass; 16-bit elements are judged by their bits, without conversion: relu(x, y).
#include "opforge/elementwise/host.h"

/* opforge
any_rank = true
*/

namespace {

inline float rectify(float x) { return x <= 0.0f ? 0.0f : x; }

// Infinity's bits: above them, without the sign, lies NaN, which is kept.
template <typename T>
constexpr uint16_t kInfinity = 0x7c00;
template <>
constexpr uint16_t kInfinity<opforge::bfloat16_t> = 0x7f80;

template <typename T>
inline T rectify(T x) {
  const bool negative = (x.bits & 0x8000u) != 0 && (x.bits & 0x7fffu) <= kInfinity<T>;
  x.bits = negative ? uint16_t(0) : x.bits;
  return x;
}

template <typename T>
void rectify_all(const T* x, T* y, int64_t n) {
  opforge::parallel_for(0, n, opforge::kElementwiseGrain, [=](int64_t first, int64_t last) {
#pragma omp simd
    for (int64_t i = first; i < last; ++i) y[i] = rectify(x[i]);
  });
}

void relu(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_same_layout({{"x", x}, {"y", y}});
  OPFORGE_DISPATCH_DTYPE(x, T, rectify_all(opforge::data<const T>(x), opforge::data<T>(y), x.numel()));
}

}  // namespace

OPFORGE_EXPORT(run, relu)
