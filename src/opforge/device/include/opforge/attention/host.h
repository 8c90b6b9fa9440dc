// opforge/attention/host.h - attention on a CPU: what a query sees, packed blocks of keys and values, an online softmax between two products.
//
// source    Dao, FlashAttention-2, arXiv:2307.08691; the register tiles are those of opforge/gemm/host_tile.h
#ifndef OPFORGE_ATTENTION_HOST_H_
#define OPFORGE_ATTENTION_HOST_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "opforge/attention/checks.h"
#include "opforge/attention/sides.h"
#include "opforge/gemm/host_tile.h"
#include "opforge/numeric/math.h"

namespace opforge {
namespace attention {

/// Weights of one row of a block of scores: line[0..cols) becomes exp(line - top), beyond the range [from, to) 0. Returns
/// their sum; `top` and `shrink`, what earlier sums are multiplied by, come out.
#define OPFORGE_ATTENTION_ROW(NAME, TARGET)                                                                        \
  TARGET inline float NAME(float* __restrict__ line, int64_t from, int64_t to, int64_t cols, float factor, float cap, float* top, float* shrink) { \
    constexpr int kParts = 16;                                                                                     \
    if (cap > 0.0f) {                                                                                              \
      const float inner = factor / cap;                                                                            \
      for (int64_t j = from; j < to; ++j) line[j] = cap * ::opforge::tanh(line[j] * inner);                        \
    } else {                                                                                                       \
      for (int64_t j = from; j < to; ++j) line[j] *= factor;                                                       \
    }                                                                                                              \
    float tops[kParts], sums[kParts];                                                                              \
    for (int p = 0; p < kParts; ++p) tops[p] = *top, sums[p] = 0.0f;                                               \
    int64_t j = from;                                                                                              \
    for (; j + kParts <= to; j += kParts)                                                                          \
      for (int p = 0; p < kParts; ++p) tops[p] = line[j + p] > tops[p] ? line[j + p] : tops[p];                    \
    for (; j < to; ++j) tops[0] = line[j] > tops[0] ? line[j] : tops[0];                                           \
    float higher = tops[0];                                                                                        \
    for (int p = 1; p < kParts; ++p) higher = tops[p] > higher ? tops[p] : higher;                                 \
    *shrink = higher == *top ? 1.0f : ::opforge::exp_nonpositive(*top - higher);                                   \
    *top = higher;                                                                                                 \
    for (int64_t i = 0; i < from; ++i) line[i] = 0.0f;                                                             \
    for (j = from; j + kParts <= to; j += kParts)                                                                  \
      for (int p = 0; p < kParts; ++p) {                                                                           \
        const float weight = ::opforge::exp_nonpositive(line[j + p] - higher);                                     \
        line[j + p] = weight;                                                                                      \
        sums[p] += weight;                                                                                         \
      }                                                                                                            \
    for (; j < to; ++j) {                                                                                          \
      const float weight = ::opforge::exp_nonpositive(line[j] - higher);                                           \
      line[j] = weight;                                                                                            \
      sums[0] += weight;                                                                                           \
    }                                                                                                              \
    for (int64_t i = to; i < cols; ++i) line[i] = 0.0f;                                                            \
    for (int half = kParts / 2; half > 0; half /= 2)                                                               \
      for (int p = 0; p < half; ++p) sums[p] += sums[p + half];                                                    \
    return sums[0];                                                                                                \
  }

OPFORGE_ATTENTION_ROW(row_plain, )
#if defined(__x86_64__)
OPFORGE_ATTENTION_ROW(row_avx2, __attribute__((target("avx2,fma"))))
OPFORGE_ATTENTION_ROW(row_avx512, __attribute__((target("avx512f,avx512dq,avx512vl,fma,prefer-vector-width=512"))))
#endif

using Row = float (*)(float*, int64_t, int64_t, int64_t, float, float, float*, float*);

/// A row's sums have come to their end: the sink joins them. Returns what weighted values are multiplied by.
template <typename T>
float close_row(const Sides<T>& sides, int64_t head, float* top, float* total) {
  float shrink = 1.0f;
  if (sides.sinks != nullptr) {
    const float sink = sides.sinks[head * sides.sinks_h], higher = std::max(*top, sink);
    shrink = higher == *top ? 1.0f : std::exp(*top - higher);
    *total = *total * shrink + (sink == higher && sink == *top ? float(!std::isinf(sink)) : std::exp(sink - higher));
    *top = higher;
  }
  return *total > 0.0f ? shrink * sides.grow / *total : *total == 0.0f ? 0.0f : *total;
}

/// Packed keys and values of one head that are kept for each thread: 16 MB.
constexpr int64_t kKeptFloats = int64_t{1} << 22;

/// Blocks of queries against blocks of keys. kBounded: windows and causal masks bound the loop over keys; else they hide keys one by one.
template <typename Tile, Row row, typename T, int kKeys, int kTiles, bool kBounded>
void forward(TensorView q, TensorView k, TensorView v, T* out, float* lse, const Reach& reach, const Sides<T>& sides, float factor, float cap) {
  using gemm::Buffer;
  using gemm::pack_panel;
  using gemm::round_up;
  constexpr int kRows = Tile::kRows, kCols = Tile::kCols, kBlock = kRows * kTiles;
  constexpr int64_t kWide = (kKeys + kCols - 1) / kCols * kCols;
  const int64_t heads = q.size(1), queries = q.size(2), dim = q.size(3), width = v.size(3), group = heads / k.size(1);
  const int64_t blocks = (queries + kBlock - 1) / kBlock, wide_out = round_up(width, kCols), tasks = q.size(0) * heads * blocks;
  // packed keys and values of a head are kept for all of its blocks of queries where they fit a cache, and each is packed when first met
  const int64_t most = k.size(2), in_all = (most + kKeys - 1) / kKeys;
  const bool kept = reach.first(queries - 1) == 0 && in_all * (kWide * dim + kKeys * wide_out) <= kKeptFloats;
  const int64_t slots = kept ? in_all : 1;
  std::atomic<int64_t> next{0};
  // a thread takes the next block when it has done one: neighbours share keys, and causal ones are not alike
  parallel_for(0, tasks, 1, [&](int64_t, int64_t) {
    Buffer packed_q(kBlock * dim), packed_k(slots * kWide * dim), packed_v(slots * kKeys * wide_out);
    Buffer scores(kBlock * kWide), packed_p(kRows * kKeys), sums(kBlock * wide_out);
    alignas(64) float tile[kRows * kCols];
    std::vector<char> met(slots, 0);
    int64_t held = -1;
    for (int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) {
      const int64_t b = task / (heads * blocks), h = task / blocks % heads, i0 = (blocks - 1 - task % blocks) * kBlock;
      if (held != b * heads + h / group) {
        held = b * heads + h / group;
        std::fill(met.begin(), met.end(), char{0});
      }
      const int64_t rows = std::min<int64_t>(kBlock, queries - i0), bands = (rows + kRows - 1) / kRows;
      const T* q_head = data<const T>(q) + b * q.stride(0) + h * q.stride(1);
      const T* k_head = data<const T>(k) + b * k.stride(0) + h / group * k.stride(1);
      const T* v_head = data<const T>(v) + b * v.stride(0) + h / group * v.stride(1);
      for (int64_t i = 0; i < bands; ++i)
        pack_panel<kRows>(q_head + (i0 + i * kRows) * q.stride(2), q.stride(2), q.stride(3), std::min<int64_t>(kRows, rows - i * kRows), dim, packed_q.get() + i * kRows * dim);
      float top[kBlock], total[kBlock];
      std::fill(top, top + kBlock, -std::numeric_limits<float>::infinity());
      std::fill(total, total + kBlock, 0.0f);
      std::fill(sums.get(), sums.get() + kBlock * wide_out, 0.0f);
      const int64_t there = sides.keys_of(b, k.size(2)), stop = kBounded ? std::min(reach.last(i0 + rows - 1), there) : there;
      for (int64_t j0 = kBounded ? reach.first(i0) : 0; j0 < stop; j0 += kKeys) {
        // of a block that is kept all keys are packed, whatever these queries see of it
        const int64_t cols = std::min<int64_t>(kKeys, stop - j0), full = kept ? std::min<int64_t>(kKeys, there - j0) : cols;
        const int64_t slot = kept ? j0 / kKeys : 0;
        float* const keys_at = packed_k.get() + slot * kWide * dim;
        float* const values_at = packed_v.get() + slot * kKeys * wide_out;
        if (!kept || !met[slot]) {
          for (int64_t p = 0; p * kCols < full; ++p)
            pack_panel<kCols>(k_head + (j0 + p * kCols) * k.stride(2), k.stride(2), k.stride(3), std::min<int64_t>(kCols, full - p * kCols), dim, keys_at + p * kCols * dim);
          for (int64_t p = 0; p * kCols < width; ++p)
            pack_panel<kCols>(v_head + j0 * v.stride(2) + p * kCols * v.stride(3), v.stride(3), v.stride(2), std::min<int64_t>(kCols, width - p * kCols), full, values_at + p * kCols * full);
          met[slot] = 1;
        }
        for (int64_t p = 0; p * kCols < cols; ++p)
          for (int64_t i = 0; i < bands; ++i) {
            Tile::multiply(packed_q.get() + i * kRows * dim, keys_at + p * kCols * dim, dim, tile);
            for (int64_t r = 0; r < kRows; ++r) __builtin_memcpy(scores.get() + (i * kRows + r) * kWide + p * kCols, tile + r * kCols, kCols * sizeof(float));
          }
        for (int64_t i = 0; i < bands; ++i) {
          const int64_t now = std::min<int64_t>(kRows, rows - i * kRows);
          for (int64_t r = 0; r < now; ++r) {
            const int64_t query = i * kRows + r;
            const int64_t from = std::min(std::max<int64_t>(reach.first(i0 + query) - j0, 0), cols);
            const int64_t to = std::max(from, std::min(reach.last(i0 + query) - j0, cols));
            float* line = scores.get() + query * kWide;
            float shrink = 1.0f;
            // what joins the scores has scaled them before
            const bool joined = from < to && sides.joins();
            if (from < to && (!joined || sides.join(line, from, to, b, h, i0 + query, j0, factor, cap))) {
              const float sum = row(line, from, to, cols, joined ? 1.0f : factor, joined ? 0.0f : cap, &top[query], &shrink);
              total[query] = total[query] * shrink + sum;
              if (sides.drops) sides.drop(line, from, to, b, h, i0 + query, j0);
            } else {
              std::fill(line, line + cols, 0.0f);
            }
            if (shrink != 1.0f) {
              float* values = sums.get() + query * wide_out;
              for (int64_t e = 0; e < wide_out; ++e) values[e] *= shrink;
            }
          }
          pack_panel<kRows>(scores.get() + i * kRows * kWide, kWide, int64_t{1}, now, cols, packed_p.get());
          for (int64_t p = 0; p * kCols < width; ++p) {
            Tile::multiply(packed_p.get(), values_at + p * kCols * full, cols, tile);
            for (int64_t r = 0; r < now; ++r) {
              float* values = sums.get() + (i * kRows + r) * wide_out + p * kCols;
              for (int e = 0; e < kCols; ++e) values[e] += tile[r * kCols + e];
            }
          }
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t line = (b * heads + h) * queries + i0 + r;
        float* values = sums.get() + r * wide_out;
        const float inverse = close_row(sides, h, &top[r], &total[r]);
        for (int64_t e = 0; e < width; ++e) values[e] *= inverse;
        convert_from_float(values, out + line * width, width);
        lse[line] = total[r] == 0.0f ? -std::numeric_limits<float>::infinity() : top[r] + std::log(total[r]);
      }
    }
  });
}

/// Attention in the registers that the CPU has: kKeys keys at a time, kTiles register tiles of queries in a block.
template <typename T, int kKeys, int kTiles, int kIsa, bool kBounded = true>
void forward_any(TensorView q, TensorView k, TensorView v, T* out, float* lse, const Reach& reach, const Sides<T>& sides, float factor, float cap) {
  switch (gemm::instruction_set<kIsa>()) {
#if defined(__x86_64__)
    case 3: return forward<gemm::Avx512Tile, row_avx512, T, kKeys, kTiles, kBounded>(q, k, v, out, lse, reach, sides, factor, cap);
    case 2: return forward<gemm::Avx2Tile, row_avx2, T, kKeys, kTiles, kBounded>(q, k, v, out, lse, reach, sides, factor, cap);
#endif
    default: return forward<gemm::PlainTile, row_plain, T, kKeys, kTiles, kBounded>(q, k, v, out, lse, reach, sides, factor, cap);
  }
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_HOST_H_
