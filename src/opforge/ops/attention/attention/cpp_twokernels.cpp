// A block of rows becomes weights while its scores are in the cache; weighted values are a second kernel.
//
// source    the fused QK^T and softmax that preceded FlashAttention (Dao et al., arXiv:2205.14135, section 2.2)
// moves     all weights in float32 twice: written by the first kernel, read by the second
// idea      the second step of the ladder: softmax costs no pass over memory, and the weights still do
// code      opforge/attention/through_memory.h
// limits    4 bytes for each pair of a query and a key
/* opforge
layouts = ["contiguous", "rows", "strided"]

[supports]
some_stay = "dropout < 1"
scores_fit_memory = "batch * kv_heads * group * queries * keys <= 1073741824"
*/
#include <optional>

#include "opforge/attention/through_memory.h"

namespace {

using Given = std::optional<opforge::TensorView>;

template <typename T>
using Sides = opforge::attention::Sides<T>;

void attention(opforge::TensorView q, opforge::TensorView k, opforge::TensorView v, Given key_lengths, Given bias, Given mask, Given alibi_slopes,
               Given sinks, opforge::TensorView out, opforge::TensorView lse, double scale, bool causal, int64_t window_left, int64_t window_right,
               int64_t alignment, double softcap, double dropout, int64_t seed, int64_t offset) {
  const opforge::attention::Reach reach(q.size(2), k.size(2), causal, window_left, window_right, alignment == 1);
  opforge::attention::check(q, k, v, out, lse);
  if (out.numel() == 0) return;
  const float factor = scale != 0.0 ? static_cast<float>(scale) : 1.0f / std::sqrt(static_cast<float>(q.size(3)));
  OPFORGE_DISPATCH_DTYPE(q, T, {
    const Sides<T> sides(q, k, key_lengths, bias, mask, alibi_slopes, sinks, reach.shift, dropout, seed, offset);
    opforge::attention::ThroughMemory<T>{q, k, v, opforge::data<T>(out), opforge::data<float>(lse), reach, sides, factor, static_cast<float>(softcap)}.two_kernels();
  });
}

}  // namespace

OPFORGE_EXPORT(run, attention)
