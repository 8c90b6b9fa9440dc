// opforge/elementwise/broadcast_host.h - y[i] = f(x[i], b[offset(i)], ...) on the CPU: x and y contiguous, the b's broadcast
// over any of the axes.
#ifndef OPFORGE_BROADCAST_HOST_H_
#define OPFORGE_BROADCAST_HOST_H_

#include <algorithm>
#include <array>
#include <memory>

#include "opforge/elementwise/broadcast_axes.h"
#include "opforge/elementwise/host.h"

namespace opforge {

namespace detail {

// Rows at least this long are worth a loop of their own.
constexpr int64_t kLongRow = 512;

// f with the b's as pointers, or as numbers where a whole row meets one element.
template <typename T, typename F, std::size_t K, std::size_t... I>
inline void broadcast_row(int64_t n, T* y, const F& f, const T* x, const std::array<const T*, K>& b, int64_t stride, std::index_sequence<I...>) {
  if (stride == 1) {
    map_range(0, n, y, f, x, b[I]...);
  } else {
    const float one[] = {load_as_float(*b[I])...};
    map_range(0, n, y, [&f, &one](float v) { return f(v, one[I]...); }, x);
  }
}

// Short rows: what the b's are for a stretch of several of them is laid out once, and used for as long as it repeats.
struct Stretch {
  int64_t length;     // elements laid out
  int64_t period;     // after how many the axis above moves on by one
  int64_t extent;     // elements over which the axis above runs
  int axes;           // how many axes the period covers
  bool repeats;       // whether the axis above is broadcast, so that one layout serves its whole extent

  explicit Stretch(const BroadcastAxes& all) {
    period = all.size[0];
    axes = 1;
    while (axes < all.count && all.stride[axes] != 0 && period < kLongRow) period *= all.size[axes++];
    repeats = axes < all.count && all.stride[axes] == 0;
    extent = repeats ? period * all.size[axes] : period;
    length = repeats && period < kLongRow ? period * std::min(all.size[axes], (2 * kLongRow + period - 1) / period) : period;
  }
};

template <typename T, std::size_t K>
inline void lay_out(const BroadcastAxes& all, const Stretch& stretch, const std::array<const T*, K>& b, T* buffer) {
  for (std::size_t k = 0; k < K; ++k) {
    T* target = buffer + k * stretch.length;
    for (int64_t row = 0; row < stretch.period / all.size[0]; ++row) {
      BroadcastAxes within = all;
      within.count = stretch.axes;
      const T* from = b[k] + within.offset(row, 1);
      for (int64_t i = 0; i < all.size[0]; ++i) target[row * all.size[0] + i] = from[i * all.stride[0]];
    }
    for (int64_t i = stretch.period; i < stretch.length; ++i) target[i] = target[i - stretch.period];
  }
}

}  // namespace detail

/// y = f(x, b...) with the b's all broadcast in the same way; f as in map.
template <typename T, typename F, std::size_t K>
inline void broadcast_map(const BroadcastAxes& axes, T* y, const F& f, const T* x, const std::array<const T*, K>& b) {
  const auto indices = std::make_index_sequence<K>();
  const auto moved = [&b](int64_t offset) {
    std::array<const T*, K> there = b;
    for (const T*& p : there) p += offset;
    return there;
  };
  if (axes.count <= 1 || axes.size[0] >= detail::kLongRow) {
    const int64_t cols = axes.size[0], stride = axes.stride[0];
    parallel_for(0, axes.numel(), kElementwiseGrain, [&](int64_t first, int64_t last) {
      int64_t row = first / cols, col = first % cols;
      for (int64_t i = first; i < last; ++row, col = 0) {
        const int64_t n = std::min(cols - col, last - i);
        detail::broadcast_row(n, y + i, f, x + i, moved(axes.offset(row, 1) + col * stride), stride, indices);
        i += n;
      }
    });
    return;
  }
  const detail::Stretch stretch(axes);
  parallel_for(0, axes.numel(), kElementwiseGrain, [&](int64_t first, int64_t last) {
    const std::unique_ptr<T[]> buffer(new T[K * stretch.length]);
    std::array<const T*, K> laid;
    int64_t known = -1;
    for (int64_t i = first; i < last;) {
      const int64_t outer = i / stretch.extent, within = i % stretch.extent, start = within % stretch.length;
      const int64_t offset = axes.offset(outer, stretch.axes + (stretch.repeats ? 1 : 0));
      if (offset != known) detail::lay_out(axes, stretch, moved(offset), buffer.get());
      known = offset;
      const int64_t n = std::min({stretch.length - start, stretch.extent - within, last - i});
      for (std::size_t k = 0; k < K; ++k) laid[k] = buffer.get() + k * stretch.length + start;
      detail::broadcast_row(n, y + i, f, x + i, laid, 1, indices);
      i += n;
    }
  });
}

}  // namespace opforge

#endif  // OPFORGE_BROADCAST_HOST_H_
