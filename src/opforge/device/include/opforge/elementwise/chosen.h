// opforge/elementwise/chosen.h - maps and sums on the CPU whose width, stores, parts and threads are chosen: what `opforge optimize` changes in generated kernels.
//
// Choices, as a kernel's own space has them (the struct C of each function):
//   kGrain   elements that are worth a thread of their own
//   kShare   0: each thread has one range of its own; else pieces of so many elements, and who is free takes the next
//   kWide    1: elements become floats in whole registers; 0: one after another, as the compiler sees fit
//   kStream  1: results go past the caches to memory, which spares reading what is overwritten
//   kPart    the longest part of a row that is walked at once; 1: an index for each element, divided by the row's length
//   kSums    registers of sums that run side by side: an addition takes several cycles
#ifndef OPFORGE_ELEMENTWISE_CHOSEN_H_
#define OPFORGE_ELEMENTWISE_CHOSEN_H_

#include <algorithm>
#include <atomic>

#include "opforge/elementwise/host.h"

namespace opforge {
namespace chosen {

namespace detail = ::opforge::detail;

/// Calls body(first, last) on ranges that cover [0, count); `grain` and `share` in the units of `count`.
template <typename Body>
inline void ranges(int64_t count, int64_t grain, int64_t share, const Body& body) {
  if (share <= 0) {
    parallel_for(0, count, grain, body);
    return;
  }
  const int64_t pieces = (count + share - 1) / share;
  std::atomic<int64_t> next{0};
  // as many takers as there are threads worth it, each until nothing is left
  const int64_t takers = std::max<int64_t>(1, std::min(pieces, count / std::max<int64_t>(1, grain)));
  parallel_for(0, takers, 1, [&](int64_t, int64_t) {
    for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      body(piece * share, std::min(count, (piece + 1) * share));
    }
  });
}

/// The same for the elements of rows: body(first, last) with both in elements.
template <typename C, typename Body>
inline void elements(int64_t count, const Body& body) {
  ranges(count, C::kGrain, C::kShare, body);
}

/// Calls body(row) for every row of `cols` elements.
template <typename C, typename Body>
inline void for_each_row(int64_t rows, int64_t cols, const Body& body) {
  const int64_t grain = 1 + C::kGrain / (cols + 1), share = C::kShare > 0 ? 1 + C::kShare / (cols + 1) : 0;
  ranges(rows, grain, share, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) body(row);
  });
}

/// The elements of a row's part that are walked at once.
template <typename C>
inline int64_t part(int64_t n) {
  return std::min<int64_t>(n, C::kPart);
}

#if defined(__AVX512F__)
constexpr int kLine = 64;
inline void stream(void* target, detail::Floats values) { __builtin_ia32_movntps512(static_cast<float*>(target), values); }
inline void drain() { __builtin_ia32_sfence(); }
#elif defined(__AVX__)
constexpr int kLine = 32;
inline void stream(void* target, detail::Floats values) { __builtin_ia32_movntps256(static_cast<float*>(target), values); }
inline void drain() { __builtin_ia32_sfence(); }
#else
constexpr int kLine = 1;
inline void stream(void* target, detail::Floats values) { detail::store_vector(target, values); }
inline void drain() {}
#endif

/// out[i] = f(in[i]...) for i in [0, n), on one thread, past the caches from the first whole line on.
template <typename T, typename F, typename... In>
inline void map_streamed(int64_t n, T* out, const F& f, const In*... in) {
  constexpr int64_t kStep = 2 * detail::kLanes;
  const int64_t off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLine);
  int64_t i = off ? std::min<int64_t>(n, (kLine - off) / static_cast<int64_t>(sizeof(T))) : 0;
  detail::map_range(0, i, out, f, in...);
  for (; i + kStep <= n; i += kStep) {
    const detail::Wide values = detail::map_wide(f, detail::widen(in + i)...);
    T whole[kStep];
    detail::narrow(values, whole);
    for (int64_t k = 0; k < kStep; k += sizeof(detail::Floats) / sizeof(T)) {
      stream(out + i + k, detail::load_vector<detail::Floats>(whole + k));
    }
  }
  detail::map_range(i, n, out, f, in...);
  drain();
}

/// out[i] = f(in[i]...) for i in [0, n), on one thread; f as in map of elementwise/host.h.
template <typename C, typename T, typename F, typename... In>
inline void map_row(int64_t n, T* out, const F& f, const In*... in) {
  if constexpr (C::kStream) {
    map_streamed(n, out, f, in...);
  } else if constexpr (C::kWide) {
    detail::map_range(0, n, out, f, in...);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = store_from_float<T>(f(load_as_float(in[i])...));
  }
}

/// The same over all threads.
template <typename C, typename T, typename F, typename... In>
inline void map(int64_t n, T* out, const F& f, const In*... in) {
  elements<C>(n, [&](int64_t first, int64_t last) { map_row<C>(last - first, out + first, f, (in + first)...); });
}

/// The sum of f(x[i], in[i]...) for i in [0, n), in one register of sums, two, or four (arch/host_lanes.h).
template <typename C, typename F, typename T, typename... In>
inline float sum_map(int64_t n, const F& f, const T* x, const In*... in) {
  if constexpr (C::kSums >= 4) {
    return ::opforge::sum_map(n, f, x, in...);
  } else {
    constexpr int64_t kStep = 2 * detail::kLanes;
    detail::Wide sums = {};
    int64_t i = 0;
    for (; i < n; i += kStep) {
      const int64_t rest = std::min(n - i, kStep);
      detail::Wide terms;
      if (rest == kStep) {
        terms = detail::map_wide(f, detail::widen(x + i), detail::widen(in + i)...);
      } else {
        terms = detail::only_first<T>(detail::map_wide(f, detail::widen_part(x + i, rest), detail::widen_part(in + i, rest)...), rest, 0.0f);
      }
      if constexpr (C::kSums >= 2) {
        detail::add_to(sums, terms);
      } else {
        sums.first = (sums.first + terms.first) + terms.second;
      }
    }
    return detail::across(sums.first + sums.second, [](const detail::Floats& a, const detail::Floats& b) { return a + b; });
  }
}

}  // namespace chosen
}  // namespace opforge

#endif  // OPFORGE_ELEMENTWISE_CHOSEN_H_
