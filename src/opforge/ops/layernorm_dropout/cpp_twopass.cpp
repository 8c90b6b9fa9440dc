// Mean, variance of the deviations from it, and dropout of the result, with a row at a time in cache.
//
// moves     2 * rows * cols * itemsize bytes while a row of floats fits the cache; no mask is stored
// limits    rows are spread over the threads: a single row runs on one; random words cost more time than the rest
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <algorithm>

#include "opforge/host_rows.h"
#include "opforge/philox.h"

namespace {

// Drops `count` elements, the first of which has the index `first`: 64 blocks of the generator side by side.
inline void drop(const opforge::Dropout& dropout, int64_t first, float* __restrict__ values, int64_t count) {
  constexpr int64_t kBlocks = 64;
  uint32_t by_word[4][kBlocks];
  for (int64_t begin = first / 4; begin * 4 < first + count; begin += kBlocks) {
#pragma omp simd
    for (int64_t b = 0; b < kBlocks; ++b) {
      uint32_t four[4];
      opforge::philox(dropout.seed(), static_cast<uint64_t>(begin + b), four);
      by_word[0][b] = four[0];
      by_word[1][b] = four[1];
      by_word[2][b] = four[2];
      by_word[3][b] = four[3];
    }
    const int64_t from = std::max(first, 4 * begin), to = std::min(first + count, 4 * (begin + kBlocks));
    for (int64_t i = from; i < to; ++i) values[i - first] = dropout.keep(by_word[i % 4][i / 4 - begin], values[i - first]);
  }
}

template <typename T>
void layernorm_dropout_rows(opforge::Rows<const T> x, const T* weight, const T* bias, opforge::Rows<T> y, float eps, const opforge::Dropout& dropout) {
  const int64_t cols = x.cols;
  const opforge::FloatColumns<T> weights(weight, cols), biases(bias, cols);
  const float* w = weights.get();
  const float* b = biases.get();
  opforge::for_each_row(x.rows, cols, [&](int64_t r, float* buffer) {
    const float* row = opforge::row_as_float(x.data + r * x.stride, buffer, cols);
    const float mean = opforge::sum_over(row, cols, [](auto v) { return v; }) / cols;
    const float variance = opforge::sum_over(row, cols, [mean](auto v) {
      const auto centred = v - mean;
      return centred * centred;
    }) / cols;
    const float scale = 1.0f / std::sqrt(variance + eps);
    T* out = y.data + r * y.stride;
    float* target = opforge::row_target(out, buffer);
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) target[c] = (row[c] - mean) * scale * w[c] + b[c];
    drop(dropout, r * cols, target, cols);
    opforge::finish_row(target, out, cols);
  });
}

void layernorm_dropout(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y, double eps, double p, int64_t seed) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_COLUMNS(weight, x);
  OPFORGE_CHECK_COLUMNS(bias, x);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         layernorm_dropout_rows<T>(opforge::as_rows<const T>(x), opforge::data<T>(weight), opforge::data<T>(bias), opforge::as_rows<T>(y),
                                                   static_cast<float>(eps), opforge::Dropout(p, seed)));
}

}  // namespace

OPFORGE_EXPORT(run, layernorm_dropout)
