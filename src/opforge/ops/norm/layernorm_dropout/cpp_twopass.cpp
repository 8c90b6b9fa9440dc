// Mean, variance of the deviations from it, and dropout of the result, with a row at a time in cache.
//
// moves     2 * rows * cols * itemsize bytes while a row of floats fits the cache; no mask is stored
// limits    rows are spread over the threads: a single row runs on one; random words cost more time than the rest
/* opforge
layouts = ["contiguous", "rows"]
[supports]
some_stay = "p < 1"
*/
#include <algorithm>

#include "opforge/rows/host.h"
#include "opforge/numeric/philox.h"

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

void layernorm_dropout(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y, double eps, double p, int64_t seed) {
  opforge::check_rows({"x", x});
  const opforge::Dropout dropout(p, seed);
  const int64_t cols = x.size(1);
  opforge::layernorm_tensors(x, weight, bias, y, eps, [&](int64_t r, float* target) { drop(dropout, r * cols, target, cols); });
}

}  // namespace

OPFORGE_EXPORT(run, layernorm_dropout)
