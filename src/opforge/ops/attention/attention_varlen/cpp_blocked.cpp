// One sequence after another, each as attention's own blocks of queries and keys; threads share its heads and blocks.
//
// source    Dao, FlashAttention-2, arXiv:2307.08691, on the register tiles of opforge/gemm/host.h
// moves     q and out once, a sequence's result once more, from heads first to tokens first; k and v are packed as
//           attention packs them
// code      opforge/attention/host.h
// limits    threads wait for each other at the end of a sequence: many short ones leave some idle
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
KEYS = [64, 128, 256, 512]
TILES = [2, 4, 5, 8]
ISA = [0, 1, 2, 3]

[default]
KEYS = 256
TILES = 5
ISA = 0
*/
#include <limits>
#include <vector>

#include "opforge/attention/host.h"

namespace {

using opforge::TensorView;

// The tokens of a sequence, [tokens, heads, dim], as [1, heads, tokens, dim]: a view.
struct Sequence {
  int64_t shape[4], strides[4];
  DLTensor tensor;

  Sequence(const TensorView& packed, int64_t first, int64_t tokens)
      : shape{1, packed.size(1), tokens, packed.size(2)},
        strides{0, packed.stride(1), packed.stride(0), packed.stride(2)},
        tensor{} {
    const int64_t bytes = packed.dtype().bits / 8;
    tensor.data = static_cast<char*>(packed.data_ptr()) + first * packed.stride(0) * bytes;
    tensor.device = packed.device();
    tensor.dtype = packed.dtype();
    tensor.ndim = 4;
    tensor.shape = shape;
    tensor.strides = strides;
  }
};

template <typename T>
void attend(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& cu_q,
            const TensorView& cu_k, T* out, float* lse, bool causal, int64_t left, int64_t right, bool bottom_right,
            float factor, float cap) {
  const int64_t total = q.size(0), heads = q.size(1), width = v.size(2), sequences = cu_q.size(0) - 1;
  const auto offset = [](const TensorView& offsets, int64_t place) {
    return static_cast<int64_t>(opforge::data<const int>(offsets)[place * offsets.stride(0)]);
  };
  for (int64_t b = 0; b < sequences; ++b) {
    const bool begins = b > 0 || (offset(cu_q, 0) == 0 && offset(cu_k, 0) == 0);
    OPFORGE_CHECK(begins && offset(cu_q, b + 1) >= offset(cu_q, b) && offset(cu_k, b + 1) >= offset(cu_k, b) &&
                      offset(cu_q, b + 1) <= total && offset(cu_k, b + 1) <= k.size(0),
                  ValueError, "offsets of sequence ", b,
                  " are wrong: offsets begin with 0, don't decrease, and end with the number of tokens or less");
  }
  const auto empty = [&](int64_t first, int64_t last) {
    std::fill(out + first * heads * width, out + last * heads * width, opforge::store_from_float<T>(0.0f));
    for (int64_t h = 0; h < heads; ++h)
      std::fill(lse + h * total + first, lse + h * total + last, -std::numeric_limits<float>::infinity());
  };
  // tokens behind the last offset are of no sequence
  empty(sequences > 0 ? offset(cu_q, sequences) : 0, total);
  std::vector<T> rows;
  std::vector<float> sums;
  for (int64_t b = 0; b < sequences; ++b) {
    const int64_t q0 = offset(cu_q, b), queries = offset(cu_q, b + 1) - q0;
    const int64_t k0 = offset(cu_k, b), keys = offset(cu_k, b + 1) - k0;
    if (queries == 0) continue;
    if (keys == 0) {
      empty(q0, q0 + queries);
      continue;
    }
    rows.resize(heads * queries * width);
    sums.resize(heads * queries);
    const Sequence q_rows(q, q0, queries), k_rows(k, k0, keys), v_rows(v, k0, keys);
    const opforge::attention::Reach reach(queries, keys, causal, left, right, bottom_right);
    opforge::attention::forward_any<T, KEYS, TILES, ISA>(TensorView(&q_rows.tensor), TensorView(&k_rows.tensor),
                                                         TensorView(&v_rows.tensor), rows.data(), sums.data(), reach,
                                                         opforge::attention::Sides<T>(), factor, cap);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy(sums.begin() + h * queries, sums.begin() + (h + 1) * queries, lse + h * total + q0);
      for (int64_t i = 0; i < queries; ++i)
        std::copy(rows.begin() + (h * queries + i) * width, rows.begin() + (h * queries + i + 1) * width,
                  out + ((q0 + i) * heads + h) * width);
    }
  }
}

void attention_varlen(TensorView q, TensorView k, TensorView v, TensorView cu_seqlens_q, TensorView cu_seqlens_k,
                      TensorView out, TensorView lse, double scale, bool causal, int64_t window_left,
                      int64_t window_right, int64_t alignment, double softcap) {
  OPFORGE_CHECK_NDIM(q, 3);
  OPFORGE_CHECK_NDIM(k, 3);
  OPFORGE_CHECK_NDIM(v, 3);
  OPFORGE_CHECK_SAME_DTYPE(q, k);
  OPFORGE_CHECK_SAME_DTYPE(q, v);
  OPFORGE_CHECK_SAME_DTYPE(q, out);
  OPFORGE_CHECK_SAME_SHAPE(cu_seqlens_q, cu_seqlens_k);
  OPFORGE_CHECK_CONTIGUOUS(out);
  OPFORGE_CHECK_CONTIGUOUS(lse);
  OPFORGE_CHECK(k.size(0) == v.size(0) && k.size(1) == v.size(1), ValueError,
                "k and v must have the same tokens and heads");
  OPFORGE_CHECK(q.size(2) == k.size(2), ValueError, "q and k must have the same head dimension");
  if (out.numel() == 0) return;
  OPFORGE_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0, ValueError, "q's heads must be a multiple of k's");
  const float factor = scale != 0.0 ? static_cast<float>(scale) : 1.0f / std::sqrt(static_cast<float>(q.size(2)));
  OPFORGE_DISPATCH_DTYPE(
      q, T,
      attend<T>(q, k, v, cu_seqlens_q, cu_seqlens_k, opforge::data<T>(out), opforge::data<float>(lse), causal,
                window_left, window_right, alignment == 1, factor, static_cast<float>(softcap)));
}

}  // namespace

OPFORGE_EXPORT(run, attention_varlen)
