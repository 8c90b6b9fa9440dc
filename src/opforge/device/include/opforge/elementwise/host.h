// opforge/elementwise/host.h - out[i] = f(a[i], b[i], ...) on the CPU, in float32, vectorised and in parallel.
#ifndef OPFORGE_ELEMENTWISE_HOST_H_
#define OPFORGE_ELEMENTWISE_HOST_H_

#include "opforge/abi/checks.h"
#include "opforge/arch/host_lanes.h"

namespace opforge {

/// Elements that are worth a thread of their own.
constexpr int64_t kElementwiseGrain = 32768;

/// out[i] = f(in[i]...) for i in [0, n).  `f` takes and returns floats and has no branches
/// that a compiler cannot turn into selections.  out may be an input.
template <typename T, typename F, typename... In>
inline void map(int64_t n, T* out, const F& f, const In*... in) {
  parallel_for(0, n, kElementwiseGrain, [&](int64_t first, int64_t last) {
    detail::map_range(first, last, out, f, in...);
  });
}

/// y = f(x, ...) for contiguous tensors of one shape and dtype. Raises ValueError or TypeError where they do not fit together.
template <typename F>
inline void map_tensors(const F& f, const Named& y, const Named& x) {
  check_same_layout({x, y});
  OPFORGE_DISPATCH_DTYPE(x.tensor, T, map(x.tensor.numel(), data<T>(y.tensor), f, data<const T>(x.tensor)));
}
template <typename F>
inline void map_tensors(const F& f, const Named& y, const Named& a, const Named& b) {
  check_same_layout({a, b, y});
  OPFORGE_DISPATCH_DTYPE(a.tensor, T, map(a.tensor.numel(), data<T>(y.tensor), f, data<const T>(a.tensor), data<const T>(b.tensor)));
}

}  // namespace opforge

#endif  // OPFORGE_ELEMENTWISE_HOST_H_
