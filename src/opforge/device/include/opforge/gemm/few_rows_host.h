// opforge/gemm/few_rows_host.h - the product of a few rows on a CPU: each element of the other operand is read once, where it lies.
#ifndef OPFORGE_GEMM_FEW_ROWS_HOST_H_
#define OPFORGE_GEMM_FEW_ROWS_HOST_H_

#include "opforge/gemm/host_tile.h"

namespace opforge {
namespace gemm {

// Rows of a at a time, and columns of sums that stay in the first cache.
constexpr int64_t kFewRows = 4, kChunk = 2048;

// The first `count` elements from a place on as floats in a register; the others are 0.
template <typename T>
inline detail::Floats first_lanes(const T* source, int64_t count) {
  T part[detail::kLanes] = {};
  __builtin_memcpy(part, source, count * sizeof(T));
  return lanes_of(part);
}

// part(i, load) for every whole register of elements from number i on, and for what is left: load(place) is as many of them as there
// are, as floats.
template <typename T, typename Part>
inline void over_registers(int64_t count, const Part& part) {
  int64_t i = 0;
  for (; i + detail::kLanes <= count; i += detail::kLanes) part(i, [](const T* place) { return lanes_of(place); });
  if (i < count) part(i, [&](const T* place) { return first_lanes(place, count - i); });
}

// sums[i][j] += a[i][l] * b[l][j] for some terms and a chunk of columns of b, whose rows lie in one piece each. Even and odd terms
// are added up by themselves. a has rows of `wide` floats.
template <int terms, typename T>
void add_terms(const float* a, int64_t wide, Elements<const T> b, int64_t rows, int64_t cols, float (*sums)[kChunk]) {
  float values[kFewRows][terms];
  for (int64_t i = 0; i < rows; ++i) std::copy(a + i * wide, a + i * wide + terms, values[i]);
  over_registers<T>(cols, [&](int64_t j, const auto& load) {
    detail::Floats lines[terms];
#pragma GCC unroll 8
    for (int l = 0; l < terms; ++l) lines[l] = load(b.data + l * b.row + j);
    for (int64_t i = 0; i < rows; ++i) {
      detail::Floats sum[2] = {};
#pragma GCC unroll 8
      for (int l = 0; l < terms; ++l) sum[l % 2] += values[i][l] * lines[l];
      detail::store_vector(sums[i] + j, detail::load_vector<detail::Floats>(sums[i] + j) + (sum[0] + sum[1]));
    }
  });
}

// sums[i][j] = the sum of a[i][l] * b[l][j] for some columns of b, which lie in one piece each. a has rows of `wide` floats. The next
// columns are fetched meanwhile, which three or four rows want most.
template <int rows, int cols, typename T>
void sum_columns(const float* a, int64_t wide, Elements<const T> b, int64_t depth, float (*sums)[kChunk], int64_t j) {
  detail::Floats sum[rows][cols] = {};
  over_registers<T>(depth, [&](int64_t l, const auto& load) {
#pragma GCC unroll 2
    for (int c = 0; c < cols; ++c) {
      const T* place = b.at(l, c).data;
      const detail::Floats part = load(place);
      __builtin_prefetch(place + cols * b.col);
#pragma GCC unroll 4
      for (int i = 0; i < rows; ++i) sum[i][c] += detail::load_vector<detail::Floats>(a + i * wide + l) * part;
    }
  });
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int c = 0; c < cols; ++c)
      sums[i][j + c] = detail::across(sum[i][c], [](const detail::Floats& x, const detail::Floats& y) { return x + y; });
}

template <int rows, typename T>
void sum_all_columns(const float* a, int64_t wide, Elements<const T> b, int64_t depth, int64_t cols, float (*sums)[kChunk]) {
  int64_t j = 0;
  for (; j + 2 <= cols; j += 2) sum_columns<rows, 2>(a, wide, b.at(0, j), depth, sums, j);
  if (j < cols) sum_columns<rows, 1>(a, wide, b.at(0, j), depth, sums, j);
}

// As many rows of a as kFewRows against b, whose rows or columns lie in one piece each: its elements are used so seldom that packing
// them would cost more. Threads go over pieces of its rows that are as long as the sums may be: short ones, each in another page of
// memory, come half as fast. Sums along columns are of another order than those of packed panels.
template <typename T, typename TOut, typename Epilogue>
void multiply_few_rows(Elements<const T> a, Elements<const T> b, Elements<TOut> c, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
  constexpr int kTogether = 8;
  const int64_t wide = round_up(k, detail::kLanes);
  Buffer left(m * wide);
  for (int64_t i = 0; i < m; ++i) {
    float* row = left.get() + i * wide;
    pack_panel<1>(a.at(i, 0).data, a.row, a.col, 1, k, row);
    std::fill(row + k, row + wide, 0.0f);
  }
  const int64_t shares = round_up(n / kChunk + 1, max_threads());
  const int64_t width = std::max<int64_t>(256, round_up((n + shares - 1) / shares, 64));
  parallel_for(0, round_up(n, width) / width, 1 + 65536 / (width * std::max<int64_t>(1, k)), [&](int64_t first, int64_t last) {
    alignas(64) float sums[kFewRows][kChunk];
    for (int64_t j0 = first * width; j0 < std::min(n, last * width); j0 += width) {
      const int64_t cols = std::min(width, n - j0);
      if (b.col == 1 || k == 0) {
        for (int64_t i = 0; i < m; ++i) std::fill(sums[i], sums[i] + round_up(cols, detail::kLanes), 0.0f);
        int64_t l = 0;
        for (; l + kTogether <= k; l += kTogether) add_terms<kTogether>(left.get() + l, wide, b.at(l, j0), m, cols, sums);
        for (; l < k; ++l) add_terms<1>(left.get() + l, wide, b.at(l, j0), m, cols, sums);
      } else {
        switch (m) {
          case 1: sum_all_columns<1>(left.get(), wide, b.at(0, j0), k, cols, sums); break;
          case 2: sum_all_columns<2>(left.get(), wide, b.at(0, j0), k, cols, sums); break;
          case 3: sum_all_columns<3>(left.get(), wide, b.at(0, j0), k, cols, sums); break;
          default: sum_all_columns<4>(left.get(), wide, b.at(0, j0), k, cols, sums);
        }
      }
      for (int64_t i = 0; i < m; ++i) {
        epilogue(sums[i], i, j0, cols);
        store_line(sums[i], c, i, j0, cols);
      }
    }
  });
}

}  // namespace gemm
}  // namespace opforge

#endif  // OPFORGE_GEMM_FEW_ROWS_HOST_H_
