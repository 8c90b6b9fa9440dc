// opforge/host_pieces.h - a row as pieces of floats that stay in the first-level cache, for CPU kernels that read it several times.
#ifndef OPFORGE_HOST_PIECES_H_
#define OPFORGE_HOST_PIECES_H_

#include <algorithm>

#include "opforge/host_rows.h"
#include "opforge/math.h"

namespace opforge {

// A row of 16-bit elements passes through float in pieces that stay in the first-level cache;
// a row of float is one piece, where it lies.
template <typename T>
class Pieces {
 public:
  enum : int64_t { kSize = 1024 };

  Pieces(const T* row, int64_t cols) : row_(row), cols_(cols) {}

  /// Calls f(piece, first column, columns).
  template <class F>
  void visit(const F& f) {
    const int64_t step = std::is_same<T, float>::value ? cols_ : kSize;
    for (int64_t first = 0; first < cols_; first += step) {
      const int64_t n = std::min(cols_ - first, step);
      // a row that is a single piece is converted on the first visit only
      if (converted_ == nullptr || cols_ > step) {
        converted_ = row_as_float(row_ + first, buffer_, n);
      }
      f(converted_, first, n);
    }
  }

 private:
  const T* row_;
  int64_t cols_;
  const float* converted_ = nullptr;
  alignas(64) float buffer_[kSize];
};

/// The maximum of a row and the sum of exp(x - top); -infinity and NaN for a row of -infinity.
struct TopAndSum {
  float top, sum;
};

template <typename T>
inline TopAndSum top_and_sum(Pieces<T>& row) {
  float top = -INFINITY, sum = 0.0f;
  row.visit([&](const float* piece, int64_t, int64_t n) {
    const float highest = max_over(piece, n);
    top = highest > top ? highest : top;
  });
  row.visit([&](const float* piece, int64_t, int64_t n) {
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (int64_t c = 0; c < n; ++c) part += exp(piece[c] - top);
    sum += part;
  });
  return {top, sum};
}

}  // namespace opforge

#endif  // OPFORGE_HOST_PIECES_H_
