// opforge/norm/backward_host.h - gradients of layer and RMS normalisation on the CPU; the formulas are in opforge/norm/backward.h.
#ifndef OPFORGE_HOST_NORM_BACKWARD_H_
#define OPFORGE_HOST_NORM_BACKWARD_H_

#include <algorithm>
#include <vector>

#include "opforge/rows/host.h"

namespace opforge {

namespace detail {

/// Rows that are gone over side by side: the sums over rows are then loaded and stored once for all of them.
constexpr int kRowsBeside = kLanes == 16 ? 4 : 2;

/// What is known of a row before its gradient.
struct RowStatistics {
  float mean, scale;
};

/// The terms of a row at some of its columns: the normalised elements, and the gradient times the weight.
template <bool kCentred>
inline Wide normalised(const Wide& x, const RowStatistics& of) {
  if constexpr (!kCentred) return {x.first * of.scale, x.second * of.scale};
  return {(x.first - of.mean) * of.scale, (x.second - of.mean) * of.scale};
}
inline Wide times(const Wide& a, const Wide& b) { return {a.first * b.first, a.second * b.second}; }

/// Adds what `count` rows of gradients give to dweight and dbias from column `first` on, and to each row's `level` (the sum of
/// g = dy * weight) and `slope` (of g * h), where h are the normalised elements. A part of a register is filled with zeros of dy.
template <bool kCentred, int kRows, typename T, typename Load>
inline void add_terms(const Load& load, const Rows<const T>& x, const Rows<const T>& dy, const T* weight, int64_t row, int64_t first,
                      const RowStatistics (&of)[kRows], float* weight_sums, float* bias_sums, Wide (&level)[kRows], Wide (&slope)[kRows]) {
  const Wide w = load(weight + first);
  Wide by_weight = widen(weight_sums + first), by_bias = {};
  if constexpr (kCentred) by_bias = widen(bias_sums + first);
#pragma GCC unroll 4
  for (int k = 0; k < kRows; ++k) {
    const Wide h = normalised<kCentred>(load(x.data + (row + k) * x.stride + first), of[k]);
    const Wide d = load(dy.data + (row + k) * dy.stride + first), g = times(d, w);
    add_to(by_weight, times(d, h));
    add_to(slope[k], times(g, h));
    if constexpr (kCentred) {
      add_to(by_bias, d);
      add_to(level[k], g);
    }
  }
  narrow(by_weight, weight_sums + first);
  if constexpr (kCentred) narrow(by_bias, bias_sums + first);
}

/// The gradients of kRows rows, from `row` on.
template <bool kCentred, int kRows, typename T>
inline void gradient_rows(const Rows<const T>& x, const T* weight, const Rows<const T>& dy, const Rows<T>& dx, int64_t row, float eps, float* weight_sums,
                          float* bias_sums) {
  constexpr int64_t kStep = 2 * kLanes, kBlock = 4096;
  const int64_t cols = x.cols, whole = cols / kStep * kStep;
  RowStatistics of[kRows];
  float levels[kRows] = {}, slopes[kRows] = {};
  for (int k = 0; k < kRows; ++k) {
    const T* elements = x.data + (row + k) * x.stride;
    const float mean = kCentred ? sum_map(cols, [](float v) { return v; }, elements) / cols : 0.0f;
    const float squares = sum_map(cols, [mean](float v) { return (v - mean) * (v - mean); }, elements);
    of[k] = {mean, 1.0f / std::sqrt(squares / cols + eps)};
  }
  // a block's sums are added up for themselves, so that a rounding error grows with few terms
  for (int64_t block = 0; block < cols; block += kBlock) {
    Wide level[kRows] = {}, slope[kRows] = {};
    const int64_t end = std::min(whole, block + kBlock);
    for (int64_t c = block; c < end; c += kStep) {
      add_terms<kCentred>([](const T* at) { return widen(at); }, x, dy, weight, row, c, of, weight_sums, bias_sums, level, slope);
    }
    if (whole < cols && whole < block + kBlock) {
      add_terms<kCentred>([rest = cols - whole](const T* at) { return widen_part(at, rest); }, x, dy, weight, row, whole, of, weight_sums, bias_sums, level,
                          slope);
    }
    for (int k = 0; k < kRows; ++k) {
      const auto add = [](const Floats& a, const Floats& b) { return a + b; };
      levels[k] += across(level[k].first + level[k].second, add);
      slopes[k] += across(slope[k].first + slope[k].second, add);
    }
  }
  for (int k = 0; k < kRows; ++k) {
    const float mean = of[k].mean, scale = of[k].scale, level = levels[k] / cols, slope = slopes[k] / cols;
    map_row(cols, dx.data + (row + k) * dx.stride,
            [mean, scale, level, slope](float v, float d, float w) {
              return (d * w - level - (v - mean) * scale * slope) * scale;
            },
            x.data + (row + k) * x.stride, dy.data + (row + k) * dy.stride, weight);
  }
}

}  // namespace detail

/// dx, dweight and (kCentred: layer normalisation) dbias. Rows go to at most 64 parts, each with sums of its own; how many does not
/// depend on the number of threads, so that neither do the results.
template <bool kCentred, typename T>
inline void norm_gradient(Rows<const T> x, const T* weight, Rows<const T> dy, Rows<T> dx, T* dweight, T* dbias, float eps) {
  const int64_t cols = x.cols, rows = x.rows;
  // a part is worth its sums when it has about 16 rows
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(64, rows / 16));
  // whole registers, in the order of their lanes
  const int64_t kept = kept_floats(cols);
  std::vector<float> sums(parts * 2 * kept, 0.0f);
  parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      float *weight_sums = sums.data() + part * 2 * kept, *bias_sums = weight_sums + kept;
      int64_t row = rows * part / parts;
      const int64_t end = rows * (part + 1) / parts;
      for (; row + detail::kRowsBeside <= end; row += detail::kRowsBeside) {
        detail::gradient_rows<kCentred, detail::kRowsBeside>(x, weight, dy, dx, row, eps, weight_sums, bias_sums);
      }
      for (; row < end; ++row) detail::gradient_rows<kCentred, 1>(x, weight, dy, dx, row, eps, weight_sums, bias_sums);
    }
  });
  for (int64_t part = 1; part < parts; ++part) {
    map_row(2 * kept, sums.data(), [](float a, float b) { return a + b; }, sums.data(), sums.data() + part * 2 * kept);
  }
  const auto as_is = [](float v) { return v; };
  map_kept(cols, dweight, as_is, sums.data());
  if (kCentred) map_kept(cols, dbias, as_is, sums.data() + kept);
}

}  // namespace opforge

#endif  // OPFORGE_HOST_NORM_BACKWARD_H_
