// opforge/attention/through_memory.h - attention on a CPU with all scores in memory: the first steps of the ladder.
//
// source    Vaswani et al., Attention is all you need, arXiv:1706.03762, section 3.2.1; the products are those of opforge/gemm/host.h
#ifndef OPFORGE_ATTENTION_THROUGH_MEMORY_H_
#define OPFORGE_ATTENTION_THROUGH_MEMORY_H_

#include "opforge/attention/host.h"
#include "opforge/gemm/host.h"

namespace opforge {
namespace attention {

/// The tensors and parameters of one call. Scores are [batch, heads, queries, keys] of float32.
template <typename T>
struct ThroughMemory {
  using Blocking = gemm::Blocking<256, 8, 512, 0>;
  static constexpr int64_t kBlock = 64;  // rows whose scores stay in the cache until they are weights

  TensorView q, k, v;
  T* out;
  float* lse;
  const Reach& reach;
  const Sides<T>& sides;
  float factor, cap;
  int64_t heads = q.size(1), queries = q.size(2), keys = k.size(2), group = heads / k.size(1), width = v.size(3);
  int64_t lines = q.size(0) * heads, blocks = (queries + kBlock - 1) / kBlock;
  gemm::Buffer scores{lines * queries * keys};

  Row weigh() const {
    switch (gemm::instruction_set<0>()) {
#if defined(__x86_64__)
      case 3: return row_avx512;
      case 2: return row_avx2;
#endif
      default: return row_plain;
    }
  }

  int64_t entry(int64_t line) const { return line / heads; }
  int64_t head(int64_t line) const { return line % heads; }
  float* scores_of(int64_t line, int64_t row) const { return scores.get() + (line * queries + row) * keys; }

  /// Scores of the queries [first, last) of one head.
  void multiply_keys(int64_t line, int64_t first, int64_t last) const {
    const T* queries_at = data<const T>(q) + entry(line) * q.stride(0) + head(line) * q.stride(1) + first * q.stride(2);
    const T* keys_at = data<const T>(k) + entry(line) * k.stride(0) + head(line) / group * k.stride(1);
    gemm::multiply_packed<Blocking>(gemm::Vectors<T>{queries_at, q.stride(2), q.stride(3)}, gemm::Vectors<T>{keys_at, k.stride(2), k.stride(3)},
                                    gemm::Elements<float>{scores_of(line, first), keys, 1}, last - first, keys, q.size(3), unchanged);
  }

  /// Scores of the queries [first, last) of one head become weights that sum to 1, but for what a sink takes.
  void weights(int64_t line, int64_t first, int64_t last, Row weigh_row) const {
    const int64_t b = entry(line), h = head(line), there = sides.keys_of(b, keys);
    for (int64_t i = first; i < last; ++i) {
      float* row = scores_of(line, i);
      const int64_t from = std::min(std::max<int64_t>(reach.first(i), 0), there), to = std::max(from, std::min(reach.last(i), there));
      float top = -std::numeric_limits<float>::infinity(), total = 0.0f, shrink = 1.0f;
      const bool joined = from < to && sides.joins();
      if (from < to && (!joined || sides.join(row, from, to, b, h, i, 0, factor, cap))) {
        total = weigh_row(row, from, to, keys, joined ? 1.0f : factor, joined ? 0.0f : cap, &top, &shrink);
      } else {
        std::fill(row, row + keys, 0.0f);
      }
      const float inverse = close_row(sides, h, &top, &total);
      for (int64_t j = from; j < to; ++j) row[j] *= inverse;
      if (sides.drops) sides.drop(row, from, to, b, h, i, 0);
      lse[line * queries + i] = total == 0.0f ? -std::numeric_limits<float>::infinity() : top + std::log(total);
    }
  }

  /// The values of one head, weighted.
  void multiply_values(int64_t line) const {
    const T* values = data<const T>(v) + entry(line) * v.stride(0) + head(line) / group * v.stride(1);
    gemm::multiply_packed<Blocking>(gemm::Vectors<float>{scores_of(line, 0), keys, 1}, gemm::Vectors<T>{values, v.stride(3), v.stride(2)},
                                    gemm::Elements<T>{out + line * queries * width, width, 1}, queries, width, keys, unchanged);
  }

  static void unchanged(float*, int64_t, int64_t, int64_t) {}

  void three_kernels() const {
    for (int64_t line = 0; line < lines; ++line) multiply_keys(line, 0, queries);
    each_block([&](int64_t line, int64_t first, int64_t last) { weights(line, first, last, weigh()); });
    for (int64_t line = 0; line < lines; ++line) multiply_values(line);
  }

  void two_kernels() const {
    each_block([&](int64_t line, int64_t first, int64_t last) {
      multiply_keys(line, first, last);
      weights(line, first, last, weigh());
    });
    for (int64_t line = 0; line < lines; ++line) multiply_values(line);
  }

  template <typename Body>
  void each_block(const Body& body) const {
    parallel_for(0, lines * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * kBlock;
        body(task / blocks, first, std::min(first + kBlock, queries));
      }
    });
  }
};

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_THROUGH_MEMORY_H_
