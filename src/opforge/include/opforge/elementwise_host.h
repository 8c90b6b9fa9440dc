// opforge/elementwise_host.h - out[i] = f(a[i], b[i], ...) on the CPU, in float32, vectorised and in parallel.
#ifndef OPFORGE_ELEMENTWISE_HOST_H_
#define OPFORGE_ELEMENTWISE_HOST_H_

#include <type_traits>

#include "opforge/host.h"

namespace opforge {

/// Elements that are worth a thread of their own.
constexpr int64_t kElementwiseGrain = 32768;

namespace detail {

// 16-bit elements go through float32 in pieces that stay in the first-level cache.
constexpr int64_t kPiece = 1024;

template <typename F>
inline void map_floats(int64_t n, float* out, const F& f, const float* a) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = f(a[i]);
}
template <typename F>
inline void map_floats(int64_t n, float* out, const F& f, const float* a, const float* b) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}

template <typename T>
inline const float* widen(const T* source, float* piece, int64_t n) {
  convert_to_float(source, piece, n);
  return piece;
}

template <typename T, typename F, typename... In>
inline void map_range(int64_t first, int64_t last, T* out, const F& f, const In*... in) {
  if constexpr (std::is_same<T, float>::value) {
    map_floats(last - first, out + first, f, in + first...);
  } else {
    for (int64_t i = first; i < last; i += kPiece) {
      const int64_t n = last - i < kPiece ? last - i : kPiece;
      alignas(64) float pieces[sizeof...(In)][kPiece], result[kPiece];
      int k = 0;
      map_floats(n, result, f, widen(in + i, pieces[k++], n)...);
      convert_from_float(result, out + i, n);
    }
  }
}

}  // namespace detail

/// out[i] = f(in[i]...) for i in [0, n).  `f` takes and returns floats and has no branches
/// that a compiler cannot turn into selections; one or two inputs.  out may be an input.
template <typename T, typename F, typename... In>
inline void map(int64_t n, T* out, const F& f, const In*... in) {
  parallel_for(0, n, kElementwiseGrain, [&](int64_t first, int64_t last) {
    detail::map_range(first, last, out, f, in...);
  });
}

}  // namespace opforge

#endif  // OPFORGE_ELEMENTWISE_HOST_H_
