// opforge/attention/sides.h - what attention is given beside queries, keys and values, on a CPU: lengths, a bias, a mask, ALiBi, sinks, dropout.
//
// source    Press et al., ALiBi, arXiv:2108.12409; Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011
#ifndef OPFORGE_ATTENTION_SIDES_H_
#define OPFORGE_ATTENTION_SIDES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "opforge/host.h"
#include "opforge/numeric/math.h"

namespace opforge {
namespace attention {

/// The four words of Philox-4x32-10 for the block of keys `block` of a query, as opforge/core/attention_dropout.py has them.
inline void words_of(uint64_t seed, uint32_t block, uint32_t query, uint32_t head, uint32_t offset, uint32_t (&words)[4]) {
  uint32_t c0 = block, c1 = query, c2 = head, c3 = offset;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
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

/// What is not given is a null pointer, and dropout of 0 drops nothing.
template <typename T>
struct Sides {
  using Given = std::optional<TensorView>;

  const int32_t* lengths = nullptr;
  const T* bias = nullptr;
  const uint8_t* mask = nullptr;
  const float* slopes = nullptr;
  const float* sinks = nullptr;
  int64_t lengths_b = 0, slopes_h = 0, sinks_h = 0, bias_at[4] = {}, mask_at[4] = {}, shift = 0;
  bool drops = false;
  uint64_t seed = 0;
  uint32_t offset = 0, least = 0;
  float grow = 1.0f;

  Sides() = default;
  Sides(const TensorView& q, const TensorView& k, const Given& lengths_, const Given& bias_, const Given& mask_, const Given& slopes_,
        const Given& sinks_, int64_t shift_, double dropout, int64_t seed_, int64_t offset_)
      : shift(shift_), drops(dropout > 0.0), seed(static_cast<uint64_t>(seed_)), offset(static_cast<uint32_t>(offset_)),
        least(static_cast<uint32_t>(dropout * 4294967296.0)), grow(static_cast<float>(1.0 / (1.0 - dropout))) {
    if (lengths_) lengths = line<const int32_t>(*lengths_, q.size(0), "key_lengths", &lengths_b);
    if (slopes_) slopes = line<const float>(*slopes_, q.size(1), "alibi_slopes", &slopes_h);
    if (sinks_) sinks = line<const float>(*sinks_, q.size(1), "sinks", &sinks_h);
    if (bias_) bias = matrices<const T>(*bias_, q, k, "bias", bias_at);
    if (mask_) mask = matrices<const uint8_t>(*mask_, q, k, "mask", mask_at);
  }

  /// How many of `keys` keys an entry of the batch has.
  int64_t keys_of(int64_t b, int64_t keys) const {
    return lengths == nullptr ? keys : std::min(std::max<int64_t>(lengths[b * lengths_b], 0), keys);
  }

  /// Whether scores become others than the scaled and capped products.
  bool joins() const { return bias != nullptr || mask != nullptr || slopes != nullptr; }

  /// Products line[from..to) of a query with keys from j0 on become scores; -inf where the mask is false. Whether any is seen.
  bool join(float* line, int64_t from, int64_t to, int64_t b, int64_t h, int64_t i, int64_t j0, float factor, float cap) const {
    for (int64_t j = from; j < to; ++j) line[j] = cap > 0.0f ? cap * ::opforge::tanh(line[j] * (factor / cap)) : line[j] * factor;
    if (slopes != nullptr) {
      const float slope = slopes[h * slopes_h];
      for (int64_t j = from; j < to; ++j) line[j] -= slope * static_cast<float>(std::abs(j0 + j - i - shift));
    }
    if (bias != nullptr) {
      const T* row = bias + b * bias_at[0] + h * bias_at[1] + i * bias_at[2] + j0 * bias_at[3];
      for (int64_t j = from; j < to; ++j) line[j] += load_as_float(row[j * bias_at[3]]);
    }
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    if (mask != nullptr) {
      const uint8_t* row = mask + b * mask_at[0] + h * mask_at[1] + i * mask_at[2] + j0 * mask_at[3];
      for (int64_t j = from; j < to; ++j) line[j] = row[j * mask_at[3]] ? line[j] : kNothing;
    }
    bool seen = false;
    for (int64_t j = from; j < to; ++j) seen |= !(line[j] == kNothing);
    return seen;
  }

  /// Weights line[from..to) of keys from j0 on: those that are dropped become 0.
  void drop(float* line, int64_t from, int64_t to, int64_t b, int64_t h, int64_t i, int64_t j0) const {
    uint32_t words[4];
    for (int64_t j = from; j < to;) {
      const int64_t key = j0 + j;
      words_of(seed, static_cast<uint32_t>(key / 4), static_cast<uint32_t>(i), static_cast<uint32_t>(b * 65536 + h), offset, words);
      for (int64_t place = key % 4; place < 4 && j < to; ++place, ++j) line[j] = words[place] >= least ? line[j] : 0.0f;
    }
  }

 private:
  template <typename V>
  static V* line(const TensorView& tensor, int64_t size, const char* name, int64_t* stride) {
    OPFORGE_CHECK(tensor.ndim() == 1 && tensor.size(0) == size, ValueError, name, " must have one value for each entry or head");
    *stride = tensor.stride(0);
    return data<V>(tensor);
  }

  template <typename V>
  static V* matrices(const TensorView& tensor, const TensorView& q, const TensorView& k, const char* name, int64_t (&strides)[4]) {
    const bool fits = tensor.ndim() == 4 && tensor.size(0) == q.size(0) && tensor.size(1) == q.size(1) && tensor.size(2) == q.size(2) && tensor.size(3) == k.size(2);
    OPFORGE_CHECK(fits, ValueError, name, " must be [batch, heads, queries, keys]");
    for (int axis = 0; axis < 4; ++axis) strides[axis] = tensor.stride(axis);
    return data<V>(tensor);
  }
};

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_SIDES_H_
