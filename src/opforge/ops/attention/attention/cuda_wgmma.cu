// Hopper's own instructions: TMA brings keys and values, warpgroups multiply with wgmma and take exponentials in turns.
//
// source    Shah et al., FlashAttention-3, arXiv:2407.08608
// idea      a warpgroup's exponentials of a block of keys run under the tensor cores' work: its own product of the block before with the
//           values, and the products of the other warpgroups. Weights go from registers into that product, and never to shared memory
// moves     q and out once; k and v once for each 128 or 192 queries, mostly from L2: heads whose keys fit it are worked on together
// code      opforge/attention/wgmma.h, opforge/attention/wgmma_launch.h
// config    BLOCK_N keys of a block at the most, as far as registers and shared memory go; 0: 176 for 128 dimensions and more than 4096 keys, else 128.
//           STAGES of those blocks; 0: 3 for short rows of keys or 64 dimensions, else 2.
//           GROUPS of 64 queries share them where head dimensions are 64 at the most; 0: 3, or 2 where those would leave much less of the last block empty
// limits    sm_90a; head dimensions to 256. Rows that the TMA cannot address (strides that are no multiples of 16 bytes) are copied first;
//           dimensions between 64, 128, 192 and 256 cost as much as the next one
// precision sums in float32; weights are rounded to the dtype before they meet v; exponentials by ex2.approx
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
heads_fit_registers = "head_dim <= 256 and value_dim <= 256"
lengths_fit_a_coordinate = "queries < 268435456 and keys < 268435456"
no_bias = "not has_bias"
no_mask = "not has_mask"
no_dropout = "dropout == 0"

[space]
BLOCK_N = [0, 64, 80, 96, 128, 160, 176, 192]
STAGES = [0, 2, 3]
TURNS = [0, 1]
GROUPS = [0, 2, 3]

[default]
BLOCK_N = 0
STAGES = 0
TURNS = 1
GROUPS = 0
*/
#include <optional>

#include "opforge/attention/wgmma_launch.h"

namespace {

namespace flash = opforge::attention;

template <typename T>
void attend(const opforge::TensorView& q, const opforge::TensorView& k, const opforge::TensorView& v, const opforge::TensorView& out,
            const opforge::TensorView& lse, const flash::ForwardCall& call, cudaStream_t stream) {
  flash::forward_wgmma<T, BLOCK_N, STAGES, TURNS != 0, GROUPS>(q, k, v, out, lse, call, stream);
}

using Given = std::optional<opforge::TensorView>;

// a bias and a mask are refused by what the file supports
void attention(opforge::TensorView q, opforge::TensorView k, opforge::TensorView v, Given key_lengths, Given, Given, Given alibi_slopes, Given sinks,
               opforge::TensorView out, opforge::TensorView lse, double scale, bool causal, int64_t window_left, int64_t window_right,
               int64_t alignment, double softcap, double, int64_t, int64_t) {
  opforge::check_device({"q", q});
  flash::check(q, k, v, out, lse);
  if (out.numel() == 0) return;
  flash::ForwardCall call = flash::call_of(q, k, v, out, scale, causal, window_left, window_right, alignment == 1, softcap);
  flash::give_sides(call, q, key_lengths, alibi_slopes, sinks);
  switch (opforge::float_kind(q.dtype())) {
    case opforge::FloatKind::kFloat16: return attend<opforge::half_t>(q, k, v, out, lse, call, opforge::current_stream(q));
    case opforge::FloatKind::kBFloat16: return attend<opforge::bfloat16_t>(q, k, v, out, lse, call, opforge::current_stream(q));
    default: opforge::raise("TypeError", "q must be float16 or bfloat16 (got ", opforge::dtype_name(q.dtype()), ")");
  }
}

}  // namespace

OPFORGE_EXPORT(run, attention)
