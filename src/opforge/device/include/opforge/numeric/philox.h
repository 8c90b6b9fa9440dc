// opforge/numeric/philox.h - Philox-4x32-10, a counter-based generator, on the CPU and on the GPU.
//
// Element i takes word i % 4 of the block with the counter (i / 4 low, i / 4 high, 0, 0), under the key
// (seed low, seed high); the same as opforge/core/philox.py.
// Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
#ifndef OPFORGE_PHILOX_H_
#define OPFORGE_PHILOX_H_

#include <cstdint>

#ifdef __CUDACC__
#define OPFORGE_ANYWHERE __host__ __device__ __forceinline__
#else
#define OPFORGE_ANYWHERE inline
#endif

namespace opforge {

/// The four 32-bit words of one block of the generator.
OPFORGE_ANYWHERE void philox(uint64_t seed, uint64_t block, uint32_t (&words)[4]) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = static_cast<uint64_t>(c0) * 0xd2511f53u, second = static_cast<uint64_t>(c2) * 0xcd9e8d57u;
    c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(second);
    c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(first);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

/// What dropout does to an element: multiplies it by 1 / (1 - p), or makes it 0 with probability p.
class Dropout {
 public:
  Dropout(double p, int64_t seed)
      : seed_(static_cast<uint64_t>(seed)), threshold_(static_cast<uint32_t>(p * 4294967296.0)), scale_(static_cast<float>(1.0 / (1.0 - p))) {}

  /// The elements from index `first` on: N of them, a multiple of four that starts at one, or a single one.
  template <int N>
  OPFORGE_ANYWHERE void apply(int64_t first, float (&values)[N]) const {
    static_assert(N == 1 || N % 4 == 0, "whole blocks of the generator, or one element");
    if constexpr (N == 1) {
      uint32_t words[4];
      philox(seed_, static_cast<uint64_t>(first) / 4, words);
      values[0] = keep(first % 4 == 0 ? words[0] : first % 4 == 1 ? words[1] : first % 4 == 2 ? words[2] : words[3], values[0]);
    } else {
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int j = 0; j < N; j += 4) {
        uint32_t words[4];
        philox(seed_, static_cast<uint64_t>(first + j) / 4, words);
        for (int k = 0; k < 4; ++k) values[j + k] = keep(words[k], values[j + k]);
      }
    }
  }

  /// One element, given its word.
  OPFORGE_ANYWHERE float keep(uint32_t word, float value) const { return word >= threshold_ ? value * scale_ : 0.0f; }
  OPFORGE_ANYWHERE uint64_t seed() const { return seed_; }

 private:
  uint64_t seed_;
  uint32_t threshold_;
  float scale_;
};

}  // namespace opforge

#endif  // OPFORGE_PHILOX_H_
