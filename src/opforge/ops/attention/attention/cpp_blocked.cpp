// Blocks of queries against blocks of keys: scores stay in the cache, an online softmax rescales the sums of weighted values.
//
// source    Dao, FlashAttention-2, arXiv:2307.08691, on the register tiles of opforge/gemm/host.h
// moves     q and out once; k and v once for each block of queries, from panels that are packed once a head where 16 MB a thread hold them
// idea      windows and causal masks bound the loop over keys; only blocks at the edges are masked
// code      opforge/attention/host.h
// limits    float16 and bfloat16 are widened to float32 while packing: no use is made of the CPU's own 16-bit products
/* opforge
layouts = ["contiguous", "rows", "strided"]

[supports]
some_stay = "dropout < 1"

[space]
KEYS = [64, 128, 256, 512]
TILES = [2, 4, 5, 8]
ISA = [0, 1, 2, 3]

[default]
KEYS = 256
TILES = 5
ISA = 0
*/
#include <optional>

#include "opforge/attention/host.h"

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
  OPFORGE_DISPATCH_DTYPE(q, T, opforge::attention::forward_any<T, KEYS, TILES, ISA>(
      q, k, v, opforge::data<T>(out), opforge::data<float>(lse), reach,
      Sides<T>(q, k, key_lengths, bias, mask, alibi_slopes, sinks, reach.shift, dropout, seed, offset), factor, static_cast<float>(softcap)));
}

}  // namespace

OPFORGE_EXPORT(run, attention)
