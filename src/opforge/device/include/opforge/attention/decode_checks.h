// opforge/attention/decode_checks.h - a call of attention on a paged cache: its sizes and checks, for .cu and .cpp.
#ifndef OPFORGE_ATTENTION_DECODE_CHECKS_H_
#define OPFORGE_ATTENTION_DECODE_CHECKS_H_

#include <algorithm>
#include <cmath>

#include "opforge/ffi.h"

namespace opforge {
namespace attention {

/// A window without a limit: the largest that leaves room for the queries in 32 bits.
constexpr int64_t kFarBack = (int64_t{1} << 31) - 32;

/// Sizes of a call; strides in elements. Pages are [pages, page, kv_heads, dim].
struct DecodeSizes {
  int64_t batch, kv_heads, group, queries, page, max_pages, head_dim, value_dim, left;

  int64_t rows() const {
    return group * queries;
  }  // of one key head, in one tile: row r is query r % queries of head r / queries
  /// The keys that the queries of a sequence see at the most.
  int64_t most_keys() const { return std::min(max_pages * page, left + queries); }
};

inline DecodeSizes check_decode(const TensorView& q, const TensorView& k_pages, const TensorView& v_pages,
                                const TensorView& block_table, const TensorView& lengths, const TensorView& out,
                                const TensorView& lse, int64_t window_left) {
  OPFORGE_CHECK_NDIM(q, 4);
  OPFORGE_CHECK_NDIM(k_pages, 4);
  OPFORGE_CHECK_NDIM(v_pages, 4);
  OPFORGE_CHECK_NDIM(block_table, 2);
  OPFORGE_CHECK_NDIM(lengths, 1);
  OPFORGE_CHECK_NDIM(out, 4);
  OPFORGE_CHECK_NDIM(lse, 3);
  OPFORGE_CHECK_SAME_DTYPE(q, k_pages);
  OPFORGE_CHECK_SAME_DTYPE(q, v_pages);
  OPFORGE_CHECK_SAME_DTYPE(q, out);
  OPFORGE_CHECK_CONTIGUOUS(out);
  OPFORGE_CHECK_CONTIGUOUS(lse);
  const auto is_int32 = [](const TensorView& tensor) {
    return tensor.dtype().code == kDLInt && tensor.dtype().bits == 32;
  };
  OPFORGE_CHECK(is_int32(block_table) && is_int32(lengths), TypeError, "block_table and lengths must be int32");
  OPFORGE_CHECK(block_table.size(0) == q.size(0) && lengths.size(0) == q.size(0), ValueError,
                "q, block_table and lengths must have one batch");
  OPFORGE_CHECK(
      k_pages.size(0) == v_pages.size(0) && k_pages.size(1) == v_pages.size(1) && k_pages.size(2) == v_pages.size(2),
      ValueError, "k_pages and v_pages must have the same pages and heads");
  OPFORGE_CHECK(q.size(3) == k_pages.size(3), ValueError, "q and k_pages must have the same head dimension");
  const int64_t kv_heads = k_pages.size(2);
  OPFORGE_CHECK(kv_heads == 0 ? q.size(1) == 0 : q.size(1) % kv_heads == 0, ValueError,
                "q's heads must be a multiple of the cache's");
  OPFORGE_CHECK(q.size(2) <= 16, ValueError, "a sequence has 16 queries at the most (got ", q.size(2), ")");
  return {q.size(0), kv_heads,        kv_heads ? q.size(1) / kv_heads : 0,
          q.size(2), k_pages.size(1), block_table.size(1),
          q.size(3), v_pages.size(3), window_left < 0 ? kFarBack : std::min(window_left, kFarBack)};
}

inline float decode_scale(double scale, int64_t head_dim) {
  return scale != 0.0 ? static_cast<float>(scale) : 1.0f / std::sqrt(static_cast<float>(head_dim));
}

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_DECODE_CHECKS_H_
