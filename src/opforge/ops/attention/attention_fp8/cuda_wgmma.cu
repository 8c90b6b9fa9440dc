// Hopper's FP8 tensor cores: attention/cuda_wgmma with E4M3 operands, values transposed before, and sums of two levels.
//
// source    Shah et al., FlashAttention-3, arXiv:2407.08608, section 3.3
// idea      a kernel before writes v with its keys side by side, in the order in which weights lie in registers after the first product: they go into the
//           second one as they are. Sums of four blocks of keys stay in the tensor core, which keeps 14 bits; then they are carried on in float32, in
//           shared memory
// moves     q and out once; v in and out once more for its transposition; k and v once for each 128 queries, mostly from L2
// code      opforge/attention/wgmma_fp8.h, opforge/attention/wgmma_fp8_launch.h, opforge/arch/hopper_fp8.h
// config    BLOCK_N keys of a block; 0: 128, or where one scale of k serves all 192 of more than 2048 (head dimensions to 64), 160 of more than 4096. STAGES of those blocks.
//           GROUPS of 64 queries share them where head dimensions are 64 at the most. PROMOTE blocks of keys stay in the tensor core; 0, which is no
//           choice of a search, leaves all of them there: what that costs is measured by scripts/attention_fp8_times.py, and the bound refuses it on long rows
// limits    sm_90a; E4M3; head dimensions to 192 and 128; scales of k for blocks that are multiples of 128 keys. Rows that the TMA cannot address
//           (strides that are no multiples of 16 bytes) are copied first
// precision weights are rounded to E4M3 under a factor of 2^8 before they meet v; sums of PROMOTE blocks in 14 bits, over those in float32; exponentials by
//           ex2.approx
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float8_e4m3fn"]

[supports]
heads_fit_registers = "head_dim <= 192 and value_dim <= 128"
lengths_fit_a_coordinate = "queries < 268435456 and keys < 268435456"
scales_of_whole_blocks = "k_block % 128 == 0"

[space]
BLOCK_N = [0, 64, 96, 128, 160, 192]
STAGES = [2, 3]
TURNS = [0, 1]
GROUPS = [2, 3]
PROMOTE = [1, 2, 4]

[default]
BLOCK_N = 0
STAGES = 3
TURNS = 1
GROUPS = 2
PROMOTE = 4

[limits]
few_keys_in_14_bits = "PROMOTE * BLOCK_N <= 512"
blocks_have_one_scale = "k_block == 0 or BLOCK_N == 0 or k_block % BLOCK_N == 0"
*/
#include <optional>

#include "opforge/attention/wgmma_fp8_launch.h"

namespace {

namespace flash = opforge::attention;

using Given = std::optional<opforge::TensorView>;

void attention(opforge::TensorView q, opforge::TensorView k, opforge::TensorView v, opforge::TensorView q_scale, opforge::TensorView k_scale,
               opforge::TensorView v_scale, Given key_lengths, opforge::TensorView out, opforge::TensorView lse, double scale, bool causal, int64_t window_left,
               int64_t window_right, int64_t alignment, double softcap, int64_t q_block, int64_t k_block, bool v_channels, int64_t out_dtype) {
  opforge::check_device({"q", q});
  flash::check_fp8(q, k, v, out, lse);
  if (out.numel() == 0) return;
  flash::Fp8Call call{};
  static_cast<flash::ForwardCall&>(call) = flash::call_of(q, k, v, out, scale, causal, window_left, window_right, alignment == 1, softcap);
  flash::give_sides(call, q, key_lengths, std::nullopt, std::nullopt);
  call.float16 = out_dtype == 1;
  call.q_block = static_cast<int>(std::min<int64_t>(q_block, call.queries));
  call.q_scale = flash::give_scales(q_scale, q.size(0), q.size(1), q_block ? opforge::ceil_div(q.size(2), q_block) : 1, "q_scale", &call.q_scale_entry,
                                    &call.q_scale_head, &call.q_scale_block);
  call.k_scale = flash::give_scales(k_scale, k.size(0), k.size(1), k_block ? opforge::ceil_div(k.size(2), k_block) : 1, "k_scale", &call.k_scale_entry,
                                    &call.k_scale_head, &call.k_scale_block);
  cudaStream_t stream = opforge::current_stream(q);
  const flash::ScalesOfValues of_values(v_scale, v, v_channels, call, stream);
  if (call.key_lengths != nullptr) flash::forward_fp8<BLOCK_N, STAGES, TURNS != 0, GROUPS, PROMOTE, true>(q, k, v, out, lse, call, k_block, stream);
  else flash::forward_fp8<BLOCK_N, STAGES, TURNS != 0, GROUPS, PROMOTE, false>(q, k, v, out, lse, call, k_block, stream);
}

}  // namespace

OPFORGE_EXPORT(run, attention)
