// Keys split over blocks of four warps, each with a ring of keys of its own; tensor cores for the rows of a group.
//
// source    Dao et al., Flash-Decoding, 2023; Ye et al., FlashInfer, arXiv:2501.01005
// idea      decoding reads each key once: what counts is bytes under way. A warp waits for its own copies alone
//           (cp.async, several steps of 16 keys ahead, two blocks on a multiprocessor), so no barrier stops the others;
//           a second kernel that is launched early adds up the parts
// moves     keys and values once for each 16 rows of a group; a part's sums in float32, written and read once
// code      opforge/attention/decode.h
// config    SPLITS of a sequence; 0: by the device and the room that the table has. STAGES of a warp's ring; 0: 96 KB
//           for a block. A batch-invariant call takes no notice of SPLITS, and STAGES change no bit
// limits    head dimensions to 256, padded to 64, 128, 192 (with values of 128) or 256; sm_80 and later. Pages that
//           16-byte copies cannot address (odd strides, other layouts) are read an element at a time
// precision sums in float32; weights are rounded to the dtype before they meet v
/* opforge
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
heads_fit_registers = "head_dim <= 256 and value_dim <= 256"
rows_fit_a_grid = "batch * kv_heads * group * queries < 2147483648"

[space]
SPLITS = [0, 1, 2, 4, 8, 16, 32, 64]
STAGES = [0, 2, 3, 4]

[limits]
stages_fit = "STAGES * (max(64, cdiv(head_dim, 64) * 64) + max(64, cdiv(value_dim, 64) * 64)) * 128 <= shared_bytes_per_block * 7 // 8"

[default]
SPLITS = 0
STAGES = 0
*/
#include "opforge/attention/decode.h"

namespace {

void attention_decode(opforge::TensorView q, opforge::TensorView k_pages, opforge::TensorView v_pages,
                      opforge::TensorView block_table, opforge::TensorView lengths, opforge::TensorView out,
                      opforge::TensorView lse, double scale, int64_t window_left, double softcap,
                      bool batch_invariant) {
  opforge::check_device({"q", q});
  const auto stream = opforge::current_stream(q);
  switch (opforge::float_kind(q.dtype())) {
    case opforge::FloatKind::kFloat16:
      return opforge::attention::decode::run<opforge::half_t, STAGES>(q, k_pages, v_pages, block_table, lengths, out,
                                                                      lse, scale, window_left, softcap, batch_invariant,
                                                                      SPLITS, stream);
    case opforge::FloatKind::kBFloat16:
      return opforge::attention::decode::run<opforge::bfloat16_t, STAGES>(q, k_pages, v_pages, block_table, lengths,
                                                                          out, lse, scale, window_left, softcap,
                                                                          batch_invariant, SPLITS, stream);
    default:
      opforge::raise("TypeError", "q must be float16 or bfloat16 (got ", opforge::dtype_name(q.dtype()), ")");
  }
}

}  // namespace

OPFORGE_EXPORT(run, attention_decode)
