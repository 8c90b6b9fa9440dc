// opforge/attention/decode_host.h - few queries against a paged cache on a CPU: blocks of a sequence's keys as tasks.
#ifndef OPFORGE_ATTENTION_DECODE_HOST_H_
#define OPFORGE_ATTENTION_DECODE_HOST_H_

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

template <typename Tile, Row weigh, typename T, int kKeys>
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
    Buffer keys(kKeys * dim), values(kKeys * width), packed_q(bands * kRows * dim), packed_k(kCols * dim),
        packed_v(kKeys * wide_out);
    Buffer scores(bands * kRows * kWide), packed_p(kRows * kKeys);
    alignas(64) float tile[kRows * kCols];
    int64_t packed = -1;
    for (int64_t number = from_task; number < to_task; ++number) {
      const DecodeTask& task = tasks[number];
      const int64_t length = length_of(task.sequence), cols = task.last - task.first,
                    place = task.sequence * sizes.kv_heads + task.head;
      if (packed != place) {
        // row r is query r % queries of head r / queries of the group
        for (int64_t r = 0; r < bands * kRows; ++r)
          for (int64_t d = 0; d < dim; ++d)
            packed_q.get()[r / kRows * kRows * dim + d * kRows + r % kRows] =
                r < rows ? load_as_float(data<const T>(
                               q)[task.sequence * q.stride(0) + (task.head * sizes.group + r / queries) * q.stride(1) +
                                  r % queries * q.stride(2) + d * q.stride(3)])
                         : 0.0f;
        packed = place;
      }
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t key = task.first + j;
        const int64_t page =
                          data<const int>(table)[task.sequence * table.stride(0) + key / sizes.page * table.stride(1)],
                      slot = key % sizes.page;
        const T* from_k = data<const T>(k) + page * k.stride(0) + slot * k.stride(1) + task.head * k.stride(2);
        const T* from_v = data<const T>(v) + page * v.stride(0) + slot * v.stride(1) + task.head * v.stride(2);
        pack_panel<1>(from_k, int64_t{0}, k.stride(3), 1, dim, keys.get() + j * dim);
        pack_panel<1>(from_v, int64_t{0}, v.stride(3), 1, width, values.get() + j * width);
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
        for (int64_t r = 0; r < now; ++r) {
          const int64_t row = i * kRows + r, position = length - queries + row % queries;
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
        }
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
      return decode<gemm::Avx512Tile, row_avx512, T, kKeys>(q, k, v, table, lengths, out, lse, sizes, factor, cap);
    case 2:
      return decode<gemm::Avx2Tile, row_avx2, T, kKeys>(q, k, v, table, lengths, out, lse, sizes, factor, cap);
#endif
    default:
      return decode<gemm::PlainTile, row_plain, T, kKeys>(q, k, v, table, lengths, out, lse, sizes, factor, cap);
  }
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_DECODE_HOST_H_
