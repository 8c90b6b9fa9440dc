// Blocks of a sequence's keys as tasks of threads: gathered from their pages, multiplied on register tiles, added up.
//
// source    Dao et al., Flash-Decoding, 2023, on the register tiles of opforge/gemm/host.h
// moves     keys and values once, and once more as float32 inside the cache where there are more than 8 rows; a block's
//           sums in float32, written and read once
// idea      blocks begin where the sequence does and have KEYS keys: the split follows from its own length, in every
//           call. Up to 8 rows (queries x heads of a group) meet keys and values where they lie, fetched a few ahead: a
//           register tile would be mostly empty, and packing for it cost eight times as much as all else
// code      opforge/attention/decode_host.h
// limits    float16 and bfloat16 are widened to float32 while they are read: no use is made of the CPU's own 16-bit
//           products. With ISA given, or pages whose numbers are not side by side, few rows take a tile as well
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
KEYS = [128, 256, 512, 1024]
ISA = [0, 1, 2, 3]

[default]
KEYS = 256
ISA = 0
*/
#include "opforge/attention/decode_host.h"

namespace {

void attention_decode(opforge::TensorView q, opforge::TensorView k_pages, opforge::TensorView v_pages,
                      opforge::TensorView block_table, opforge::TensorView lengths, opforge::TensorView out,
                      opforge::TensorView lse, double scale, int64_t window_left, double softcap, bool) {
  const auto sizes = opforge::attention::check_decode(q, k_pages, v_pages, block_table, lengths, out, lse, window_left);
  if (out.numel() == 0) return;
  const float factor = opforge::attention::decode_scale(scale, sizes.head_dim);
  OPFORGE_DISPATCH_DTYPE(q, T,
                         opforge::attention::decode_any<T, KEYS, ISA>(q, k_pages, v_pages, block_table, lengths,
                                                                      opforge::data<T>(out), opforge::data<float>(lse),
                                                                      sizes, factor, static_cast<float>(softcap)));
}

}  // namespace

OPFORGE_EXPORT(run, attention_decode)
