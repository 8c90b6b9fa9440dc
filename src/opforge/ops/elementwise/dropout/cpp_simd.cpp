// 64 blocks of the generator side by side, so that their products fill the vector unit; then the 256 elements that they decide.
//
// moves     2 * elements * itemsize bytes; no mask is stored
// limits    bound by arithmetic: 20 wide products for 4 elements
/* opforge
[supports]
some_stay = "p < 1"
*/
#include <algorithm>

#include "opforge/host.h"
#include "opforge/numeric/philox.h"

namespace {

constexpr int64_t kBlocks = 64, kElements = 4 * kBlocks;

// Words of the elements of `kBlocks` blocks from `first` on, in the elements' order.
inline void make_words(uint64_t seed, int64_t first, uint32_t* __restrict__ words) {
  uint32_t by_word[4][kBlocks];
#pragma omp simd
  for (int64_t b = 0; b < kBlocks; ++b) {
    uint32_t four[4];
    opforge::philox(seed, static_cast<uint64_t>(first + b), four);
    by_word[0][b] = four[0];
    by_word[1][b] = four[1];
    by_word[2][b] = four[2];
    by_word[3][b] = four[3];
  }
  for (int64_t b = 0; b < kBlocks; ++b)
    for (int w = 0; w < 4; ++w) words[4 * b + w] = by_word[w][b];
}

template <typename T>
void drop(const opforge::Dropout& dropout, const T* x, T* y, int64_t n) {
  opforge::parallel_for(0, (n + kElements - 1) / kElements, 64, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[kElements];
    alignas(64) float values[kElements];
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kElements, count = std::min(kElements, n - first);
      make_words(dropout.seed(), tile * kBlocks, words);
      opforge::convert_to_float(x + first, values, count);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) values[i] = dropout.keep(words[i], values[i]);
      opforge::convert_from_float(values, y + first, count);
    }
  });
}

void run_dropout(opforge::TensorView x, opforge::TensorView y, double p, int64_t seed) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  const opforge::Dropout dropout(p, seed);
  OPFORGE_DISPATCH_DTYPE(x, T, drop(dropout, opforge::data<const T>(x), opforge::data<T>(y), x.numel()));
}

}  // namespace

OPFORGE_EXPORT(run, run_dropout)
