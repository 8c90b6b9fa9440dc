// opforge/layout/permute_host.h - data moved on the CPU: transposition of matrices in registers, and exchange of two middle axes.
#ifndef OPFORGE_PERMUTE_HOST_H_
#define OPFORGE_PERMUTE_HOST_H_

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "opforge/host.h"
#include "opforge/layout/permute_axes.h"

namespace opforge {

namespace detail {

constexpr int kSquare = 16;     // rows and columns that are transposed in registers
constexpr int64_t kPatch = 64;  // rows and columns whose lines stay in the first-level cache meanwhile

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define OPFORGE_SHUFFLES_VECTORS 1
#endif
#endif

#if OPFORGE_SHUFFLES_VECTORS
template <typename T, int kCount>
struct Several {
  typedef T Lanes __attribute__((vector_size(kCount * sizeof(T))));
};
template <typename T, int kCount>
using Lanes = typename Several<T, kCount>::Lanes;

template <typename T, int... j>
inline Lanes<T, sizeof...(j)> side_by_side(Lanes<T, sizeof...(j) / 2> a, Lanes<T, sizeof...(j) / 2> b, std::integer_sequence<int, j...>) {
  return __builtin_shufflevector(a, b, j...);
}

// kCount elements: 16 bytes from each place, `step` apart.
template <typename T, int kCount>
inline Lanes<T, kCount> load_parts(const T* x, int64_t step) {
  if constexpr (kCount * sizeof(T) == 16) {
    Lanes<T, kCount> part;
    std::memcpy(&part, x, 16);
    return part;
  } else {
    const int64_t half = kCount * sizeof(T) / 32;
    return side_by_side<T>(load_parts<T, kCount / 2>(x, step), load_parts<T, kCount / 2>(x + half * step, step), std::make_integer_sequence<int, kCount>());
  }
}

// In each 16 bytes, the elements of a's and b's first halves by turns (or of their second halves): one unpack instruction on x86.
template <typename T, bool kSecond, int... j>
inline Lanes<T, kSquare> by_turns(Lanes<T, kSquare> a, Lanes<T, kSquare> b, std::integer_sequence<int, j...>) {
  constexpr int kPart = 16 / sizeof(T);
  return __builtin_shufflevector(a, b, (j % 2 * kSquare + j / kPart * kPart + j % kPart / 2 + kSecond * kPart / 2)...);
}

// 16 x 16 elements. The loads put 16 bytes each of rows that are kPart apart side by side, so that what is left are squares of
// kPart x kPart in each 16 bytes. There a perfect shuffle of the rows turns the bits of an element's place (row, column) round by one.
template <typename T>
inline void transpose_square(const T* x, int64_t x_stride, T* y, int64_t y_stride) {
  constexpr int kPart = 16 / sizeof(T);
  constexpr std::make_integer_sequence<int, kSquare> places{};
  for (int c = 0; c < kSquare; c += kPart) {
    Lanes<T, kSquare> row[kPart], turned[kPart];
#pragma GCC unroll 8
    for (int i = 0; i < kPart; ++i) row[i] = load_parts<T, kSquare>(x + i * x_stride + c, kPart * x_stride);
#pragma GCC unroll 3
    for (int stage = 1; stage < kPart; stage *= 2) {
#pragma GCC unroll 4
      for (int i = 0; i < kPart / 2; ++i) {
        turned[2 * i] = by_turns<T, false>(row[i], row[i + kPart / 2], places);
        turned[2 * i + 1] = by_turns<T, true>(row[i], row[i + kPart / 2], places);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kPart; ++i) row[i] = turned[i];
    }
#pragma GCC unroll 8
    for (int i = 0; i < kPart; ++i) std::memcpy(y + (c + i) * y_stride, &row[i], sizeof(row[i]));
  }
}
#else
template <typename T>
inline void transpose_square(const T* x, int64_t x_stride, T* y, int64_t y_stride) {
  for (int c = 0; c < kSquare; ++c)
    for (int r = 0; r < kSquare; ++r) y[c * y_stride + r] = x[r * x_stride + c];
}
#endif

template <typename T>
inline void transpose_patch(const T* x, T* y, int64_t rows, int64_t cols, int64_t row0, int64_t col0) {
  const int64_t row_end = std::min(rows, row0 + kPatch), col_end = std::min(cols, col0 + kPatch);
  const int64_t whole_rows = row0 + (row_end - row0) / kSquare * kSquare, whole_cols = col0 + (col_end - col0) / kSquare * kSquare;
  for (int64_t c = col0; c < whole_cols; c += kSquare)
    for (int64_t r = row0; r < whole_rows; r += kSquare) transpose_square(x + r * cols + c, cols, y + c * rows + r, rows);
  for (int64_t c = whole_cols; c < col_end; ++c)
    for (int64_t r = row0; r < row_end; ++r) y[c * rows + r] = x[r * cols + c];
  for (int64_t c = col0; c < whole_cols; ++c)
    for (int64_t r = whole_rows; r < row_end; ++r) y[c * rows + r] = x[r * cols + c];
}

// Runs of a size that the compiler knows are copied in registers.
template <int Bytes>
struct CopyRuns {
  static void run(const char* x, char* y, int64_t count, int64_t x_step, int64_t) {
    for (int64_t a = 0; a < count; ++a) std::memcpy(y + a * Bytes, x + a * x_step, Bytes);
  }
};
template <>
struct CopyRuns<0> {
  static void run(const char* x, char* y, int64_t count, int64_t x_step, int64_t bytes) {
    for (int64_t a = 0; a < count; ++a) std::memcpy(y + a * bytes, x + a * x_step, static_cast<std::size_t>(bytes));
  }
};

}  // namespace detail

/// Transposes `matrices` contiguous matrices of rows x cols.
template <typename T>
inline void transpose(const T* x, T* y, int64_t matrices, int64_t rows, int64_t cols) {
  const int64_t down = (rows + detail::kPatch - 1) / detail::kPatch, across = (cols + detail::kPatch - 1) / detail::kPatch;
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, std::min(rows, detail::kPatch) * std::min(cols, detail::kPatch)));
  parallel_for(0, matrices * down * across, grain, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t matrix = i / (down * across), place = i % (down * across);
      // down the rows first: then the lines written to are finished one after the other
      detail::transpose_patch(x + matrix * rows * cols, y + matrix * rows * cols, rows, cols, place % down * detail::kPatch, place / down * detail::kPatch);
    }
  });
}

/// y[o][b][a][w] = x[o][a][b][w] for contiguous tensors of outer x first x second x width.
template <typename T>
inline void exchange_middle(const T* x, T* y, int64_t outer, int64_t first, int64_t second, int64_t width) {
  const int64_t bytes = width * int64_t(sizeof(T));
  const auto copy = bytes == 8     ? detail::CopyRuns<8>::run
                    : bytes == 16  ? detail::CopyRuns<16>::run
                    : bytes == 32  ? detail::CopyRuns<32>::run
                    : bytes == 64  ? detail::CopyRuns<64>::run
                    : bytes == 128 ? detail::CopyRuns<128>::run
                                   : detail::CopyRuns<0>::run;
  const char* from = reinterpret_cast<const char*>(x);
  char* to = reinterpret_cast<char*>(y);
  parallel_for(0, outer * second, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, first * bytes)), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t o = i / second, b = i % second;
      copy(from + (o * first * second + b) * bytes, to + i * first * bytes, first, second * bytes, bytes);
    }
  });
}

/// y[m, c, r] = x[m, r, c] for tensors of three axes. A template, so that a file compiles the kernels that it calls and no others. Raises ValueError or TypeError where they do not fit together.
template <typename View>
inline void transpose_tensors(const View& x, const View& y) {
  check_exchanged(x, y, 3, 1);
  OPFORGE_DISPATCH_BITS(x, T, transpose(data<const T>(x), data<T>(y), x.size(0), x.size(1), x.size(2)));
}

/// y[l, d, b, a, w] = x[l, d, a, b, w] for tensors of five axes. A template for the same reason. Raises ValueError or TypeError where they do not fit together.
template <typename View>
inline void exchange_tensors(const View& x, const View& y) {
  check_exchanged(x, y, 5, 2);
  OPFORGE_DISPATCH_BITS(x, T, exchange_middle(data<const T>(x), data<T>(y), x.size(0) * x.size(1), x.size(2), x.size(3), x.size(4)));
}

}  // namespace opforge

#endif  // OPFORGE_PERMUTE_HOST_H_
