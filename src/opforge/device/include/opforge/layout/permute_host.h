// opforge/layout/permute_host.h - data moved on the CPU: transposition of matrices in registers, and exchange of two middle axes.
#ifndef OPFORGE_PERMUTE_HOST_H_
#define OPFORGE_PERMUTE_HOST_H_

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "opforge/host.h"
#include "opforge/layout/permute_axes.h"

namespace opforge {

namespace detail {

constexpr int kSquare = 16;     // rows and columns that are transposed in registers
constexpr int64_t kPatch = 64;  // rows and columns whose lines stay in the first-level cache meanwhile

template <typename T>
struct Row16 {
  typedef T Lanes __attribute__((vector_size(kSquare * sizeof(T))));
};

// 16 x 16 elements: stage s exchanges the quarters of every square of 2s x 2s.
template <typename T>
inline void transpose_square(const T* x, int64_t x_stride, T* y, int64_t y_stride) {
#if defined(__GNUC__) && !defined(__clang__)
  using Lanes = typename Row16<T>::Lanes;
  Lanes row[kSquare];
  for (int i = 0; i < kSquare; ++i) std::memcpy(&row[i], x + i * x_stride, sizeof(Lanes));
#pragma GCC unroll 4
  for (int s = 1; s < kSquare; s *= 2) {
    Lanes upper, lower;
    for (int j = 0; j < kSquare; ++j) {
      upper[j] = static_cast<T>(j & s ? kSquare + (j ^ s) : j);
      lower[j] = static_cast<T>(j & s ? kSquare + j : j ^ s);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kSquare; ++i) {
      if (i & s) continue;
      const Lanes a = row[i], b = row[i | s];
      row[i] = __builtin_shuffle(a, b, upper);
      row[i | s] = __builtin_shuffle(a, b, lower);
    }
  }
  for (int i = 0; i < kSquare; ++i) std::memcpy(y + i * y_stride, &row[i], sizeof(Lanes));
#else
  for (int c = 0; c < kSquare; ++c)
    for (int r = 0; r < kSquare; ++r) y[c * y_stride + r] = x[r * x_stride + c];
#endif
}

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
