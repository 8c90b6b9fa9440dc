// opforge/attention/decode_host.h - few queries against a paged cache on a CPU: blocks of a sequence's keys as tasks.
#ifndef OPFORGE_ATTENTION_DECODE_HOST_H_
#define OPFORGE_ATTENTION_DECODE_HOST_H_

#include <type_traits>
#include <vector>

#include "opforge/attention/decode_checks.h"
#include "opforge/attention/host.h"

namespace opforge {
namespace attention {

/// A block of kKeys keys of one key head of a sequence: the task that threads are given. Its bounds follow from the
/// sequence alone.
struct DecodeTask {
  int64_t sequence, head, first, last, number;
};

/// Row `row` of `tasks` partial results, each [width] of sums, a maximum and a sum of weights.
struct DecodePart {
  float top = -std::numeric_limits<float>::infinity(), total = 0.0f;
};

/// Rows of a key head up to which keys and values are read where they lie: a register tile would be mostly empty, and
/// packing for it costs ten times what the products do.
constexpr int64_t kFewRows = 8;
constexpr int64_t kLanes = 16, kTogether = 4, kChunk = 4 * kLanes;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

inline Lanes lanes_at(const float* from) { return *reinterpret_cast<const Lanes*>(from); }

inline float sum_of(const Lanes& lanes) {
  float parts[kLanes];
  __builtin_memcpy(parts, &lanes, sizeof(parts));
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

/// `count` numbers as float32, zeros up to `padded`: where they lie if nothing is to be done, else in `buffer`.
template <typename T>
const float* as_floats(const T* from, int64_t count, int64_t padded, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    if (count == padded) return from;
  }
  convert_to_float(from, buffer, count);
  std::fill(buffer + count, buffer + padded, 0.0f);
  return buffer;
}

/// Rows of a cache lie a page of memory apart, where hardware looks no further ahead.
template <typename T>
void fetch_ahead(const T* from, int64_t count) {
  for (int64_t at = 0; at < count; at += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + at);
}

/// scores [rows, wide] of q [rows rounded up to kTogether, padded] with `count` keys.
template <typename T>
void few_scores(const T* const* keys, int64_t count, int64_t dim, const float* q, int64_t padded, int64_t rows,
                float* __restrict__ scores, int64_t wide, float* buffer) {
  constexpr int64_t kAhead = 8;
  for (int64_t j = 0; j < count; ++j) {
    if (j + kAhead < count) fetch_ahead(keys[j + kAhead], dim);
    const float* key = as_floats(keys[j], dim, padded, buffer);
    for (int64_t first = 0; first < rows; first += kTogether) {
      Lanes sums[kTogether] = {};
      const float* of_rows = q + first * padded;
      for (int64_t d = 0; d < padded; d += kLanes) {
        const Lanes part = lanes_at(key + d);
        for (int64_t r = 0; r < kTogether; ++r) sums[r] += part * lanes_at(of_rows + r * padded + d);
      }
      for (int64_t r = 0; r < std::min(kTogether, rows - first); ++r) scores[(first + r) * wide + j] = sum_of(sums[r]);
    }
  }
}

/// out [rows, width]: `count` values, weighted by weights [rows, wide].
template <typename T>
void few_sums(const T* const* values, int64_t count, int64_t width, const float* weights, int64_t wide, int64_t rows,
              float* __restrict__ out) {
  constexpr int64_t kAhead = 8, kParts = kChunk / kLanes;
  alignas(64) float buffer[kChunk];
  for (int64_t e = 0; e < width; e += kChunk)
    for (int64_t first = 0; first < rows; first += kTogether) {
      const int64_t now = std::min(kChunk, width - e);
      const float* of_rows[kTogether];
      // rows that do not exist are the last one once more: their sums are thrown away
      for (int64_t r = 0; r < kTogether; ++r) of_rows[r] = weights + std::min(first + r, rows - 1) * wide;
      Lanes sums[kTogether][kParts] = {};
      for (int64_t j = 0; j < count; ++j) {
        if (e == 0 && first == 0 && j + kAhead < count) fetch_ahead(values[j + kAhead], width);
        const float* value = as_floats(values[j] + e, now, kChunk, buffer);
        Lanes parts[kParts];
        for (int64_t p = 0; p < kParts; ++p) parts[p] = lanes_at(value + p * kLanes);
        for (int64_t r = 0; r < kTogether; ++r)
          for (int64_t p = 0; p < kParts; ++p) sums[r][p] += of_rows[r][j] * parts[p];
      }
      for (int64_t r = 0; r < std::min(kTogether, rows - first); ++r)
        __builtin_memcpy(out + (first + r) * width + e, sums[r], now * sizeof(float));
    }
}

/// kAny: the registers are those that the CPU has, and few rows may go without a tile.
template <typename Tile, Row weigh, typename T, int kKeys, bool kAny>
void decode(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& table,
            const TensorView& lengths, T* out, float* lse, const DecodeSizes& sizes, float factor, float cap) {
  using gemm::Buffer;
  using gemm::pack_panel;
  using gemm::round_up;
  constexpr int kRows = Tile::kRows, kCols = Tile::kCols;
  constexpr int64_t kWide = (kKeys + kCols - 1) / kCols * kCols;
  const int64_t rows = sizes.rows(), bands = (rows + kRows - 1) / kRows, dim = sizes.head_dim, width = sizes.value_dim;
  const int64_t wide_out = round_up(width, kCols), queries = sizes.queries;
  const auto length_of = [&](int64_t b) {
    return static_cast<int64_t>(data<const int>(lengths)[b * lengths.stride(0)]);
  };
  const auto begin_of = [&](int64_t length) {
    return std::min(std::max<int64_t>(length - queries - sizes.left, 0), length);
  };
  for (int64_t b = 0; b < sizes.batch; ++b) {
    const int64_t length = length_of(b);
    OPFORGE_CHECK(length >= 0 && length <= sizes.max_pages * sizes.page, ValueError, "lengths[", b, "] is ", length,
                  "; the row of block_table has room for ", sizes.max_pages * sizes.page, " keys");
    for (int64_t column = begin_of(length) / sizes.page; column * sizes.page < length; ++column) {
      const int64_t entry = data<const int>(table)[b * table.stride(0) + column * table.stride(1)];
      OPFORGE_CHECK(entry >= 0 && entry < k.size(0), ValueError, "block_table[", b, ", ", column, "] is ", entry,
                    "; there are ", k.size(0), " pages");
    }
  }
  const bool few = kAny && rows <= kFewRows && k.stride(3) == 1 && v.stride(3) == 1;
  const int64_t padded = round_up(dim, kLanes), q_rows = round_up(rows, kTogether);
  std::vector<DecodeTask> tasks;
  std::vector<int64_t> of_head(sizes.batch * sizes.kv_heads + 1, 0);  // the first task of each
  for (int64_t b = 0; b < sizes.batch; ++b)
    for (int64_t h = 0; h < sizes.kv_heads; ++h) {
      const int64_t length = length_of(b);
      for (int64_t first = begin_of(length); first < length; first += kKeys)
        tasks.push_back({b, h, first, std::min<int64_t>(first + kKeys, length), static_cast<int64_t>(tasks.size())});
      of_head[b * sizes.kv_heads + h + 1] = static_cast<int64_t>(tasks.size());
    }
  Buffer sums(static_cast<int64_t>(tasks.size()) * rows * width + 1);
  std::vector<DecodePart> parts(tasks.size() * rows);
  parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t from_task, int64_t to_task) {
    const int64_t some = few ? 0 : 1;  // what few rows do without is not allocated
    Buffer keys(some * kKeys * dim + 1), values(some * kKeys * width + 1), packed_k(some * kCols * dim + 1),
        packed_v(some * kKeys * wide_out + 1);
    Buffer packed_q(std::max(bands * kRows * dim, q_rows * padded)), scores(bands * kRows * kWide),
        packed_p(kRows * kKeys), line_of_keys(padded);
    alignas(64) float tile[kRows * kCols];
    const T *k_at[kKeys], *v_at[kKeys];
    int64_t packed = -1;
    const auto q_at = [&](const DecodeTask& task, int64_t r) {
      // row r is query r % queries of head r / queries of the group
      return data<const T>(q) + task.sequence * q.stride(0) + (task.head * sizes.group + r / queries) * q.stride(1) +
             r % queries * q.stride(2);
    };
    // weights of a row of scores, in its place; their sum and the largest score go into the task's part of the row
    const auto weigh_row = [&](const DecodeTask& task, int64_t number, int64_t row, int64_t length) {
      const int64_t cols = task.last - task.first, position = length - queries + row % queries;
      const int64_t from = std::min(std::max<int64_t>(position - sizes.left - task.first, 0), cols);
      const int64_t to = std::max(from, std::min(position + 1 - task.first, cols));
      DecodePart& part = parts[number * rows + row];
      float* line = scores.get() + row * kWide;
      float shrink = 1.0f;
      if (from < to) {
        part.total = weigh(line, from, to, cols, factor, cap, &part.top, &shrink);
      } else {
        std::fill(line, line + cols, 0.0f);
      }
    };
    for (int64_t number = from_task; number < to_task; ++number) {
      const DecodeTask& task = tasks[number];
      const int64_t length = length_of(task.sequence), cols = task.last - task.first,
                    place = task.sequence * sizes.kv_heads + task.head;
      if (packed != place && few) {
        std::fill(packed_q.get(), packed_q.get() + q_rows * padded, 0.0f);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t d = 0; d < dim; ++d)
            packed_q.get()[r * padded + d] = load_as_float(q_at(task, r)[d * q.stride(3)]);
      } else if (packed != place) {
        for (int64_t r = 0; r < bands * kRows; ++r)
          for (int64_t d = 0; d < dim; ++d)
            packed_q.get()[r / kRows * kRows * dim + d * kRows + r % kRows] =
                r < rows ? load_as_float(q_at(task, r)[d * q.stride(3)]) : 0.0f;
      }
      packed = place;
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t key = task.first + j;
        const int64_t page =
                          data<const int>(table)[task.sequence * table.stride(0) + key / sizes.page * table.stride(1)],
                      slot = key % sizes.page;
        k_at[j] = data<const T>(k) + page * k.stride(0) + slot * k.stride(1) + task.head * k.stride(2);
        v_at[j] = data<const T>(v) + page * v.stride(0) + slot * v.stride(1) + task.head * v.stride(2);
      }
      if (few) {
        few_scores(k_at, cols, dim, packed_q.get(), padded, rows, scores.get(), kWide, line_of_keys.get());
        for (int64_t row = 0; row < rows; ++row) weigh_row(task, number, row, length);
        few_sums(v_at, cols, width, scores.get(), kWide, rows, sums.get() + number * rows * width);
        continue;
      }
      for (int64_t j = 0; j < cols; ++j) {
        pack_panel<1>(k_at[j], int64_t{0}, k.stride(3), 1, dim, keys.get() + j * dim);
        pack_panel<1>(v_at[j], int64_t{0}, v.stride(3), 1, width, values.get() + j * width);
      }
      for (int64_t p = 0; p * kCols < cols; ++p) {
        pack_panel<kCols>(keys.get() + p * kCols * dim, dim, int64_t{1}, std::min<int64_t>(kCols, cols - p * kCols),
                          dim, packed_k.get());
        for (int64_t i = 0; i < bands; ++i) {
          Tile::multiply(packed_q.get() + i * kRows * dim, packed_k.get(), dim, tile);
          for (int64_t r = 0; r < kRows; ++r)
            __builtin_memcpy(scores.get() + (i * kRows + r) * kWide + p * kCols, tile + r * kCols,
                             kCols * sizeof(float));
        }
      }
      for (int64_t p = 0; p * kCols < width; ++p)
        pack_panel<kCols>(values.get() + p * kCols, int64_t{1}, width, std::min<int64_t>(kCols, width - p * kCols),
                          cols, packed_v.get() + p * kCols * cols);
      for (int64_t i = 0; i < bands; ++i) {
        const int64_t now = std::min<int64_t>(kRows, rows - i * kRows);
        for (int64_t r = 0; r < now; ++r) weigh_row(task, number, i * kRows + r, length);
        pack_panel<kRows>(scores.get() + i * kRows * kWide, kWide, int64_t{1}, now, cols, packed_p.get());
        for (int64_t p = 0; p * kCols < width; ++p) {
          Tile::multiply(packed_p.get(), packed_v.get() + p * kCols * cols, cols, tile);
          for (int64_t r = 0; r < now; ++r)
            __builtin_memcpy(sums.get() + (number * rows + i * kRows + r) * width + p * kCols, tile + r * kCols,
                             std::min<int64_t>(kCols, width - p * kCols) * sizeof(float));
        }
      }
    }
  });
  parallel_for(0, sizes.batch * sizes.kv_heads * rows, 1 + 4096 / width, [&](int64_t from_line, int64_t to_line) {
    std::vector<float> whole(width);
    for (int64_t line = from_line; line < to_line; ++line) {
      const int64_t place = line / rows, row = line % rows;
      float top = -std::numeric_limits<float>::infinity(), total = 0.0f;
      for (int64_t t = of_head[place]; t < of_head[place + 1]; ++t) top = std::max(top, parts[t * rows + row].top);
      std::fill(whole.begin(), whole.end(), 0.0f);
      for (int64_t t = of_head[place]; t < of_head[place + 1]; ++t) {
        const DecodePart& part = parts[t * rows + row];
        if (part.total == 0.0f) continue;
        const float weight = exp_nonpositive(part.top - top), *from = sums.get() + (t * rows + row) * width;
        total += part.total * weight;
        for (int64_t e = 0; e < width; ++e) whole[e] += from[e] * weight;
      }
      const float inverse = total > 0.0f ? 1.0f / total : total == 0.0f ? 0.0f : total;
      for (int64_t e = 0; e < width; ++e) whole[e] *= inverse;
      convert_from_float(whole.data(), out + line * width, width);
      lse[line] = total == 0.0f ? -std::numeric_limits<float>::infinity() : top + std::log(total);
    }
  });
}

/// Attention against a paged cache in the registers that the CPU has: kKeys keys of a task.
template <typename T, int kKeys, int kIsa>
void decode_any(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& table,
                const TensorView& lengths, T* out, float* lse, const DecodeSizes& sizes, float factor, float cap) {
  switch (gemm::instruction_set<kIsa>()) {
#if defined(__x86_64__)
    case 3:
      return decode<gemm::Avx512Tile, row_avx512, T, kKeys, kIsa == 0>(q, k, v, table, lengths, out, lse, sizes, factor, cap);
    case 2:
      return decode<gemm::Avx2Tile, row_avx2, T, kKeys, kIsa == 0>(q, k, v, table, lengths, out, lse, sizes, factor, cap);
#endif
    default:
      return decode<gemm::PlainTile, row_plain, T, kKeys, kIsa == 0>(q, k, v, table, lengths, out, lse, sizes, factor, cap);
  }
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_DECODE_HOST_H_
