// Hopper's own instructions: a block of keys stays, TMA brings queries to it, warpgroups multiply with wgmma: 5 products.
//
// source    Shah et al., FlashAttention-3, arXiv:2407.08608; Dao, FlashAttention-2, arXiv:2307.08691, section 3.1
// idea      scores have keys as rows: weights and slopes go from the registers where they were computed into the products that add up dv and dk.
//           Slopes alone pass through shared memory, for dq, whose parts are added to float32 sums in global memory
// moves     q and dout once for each 128 keys, and as often the float32 sums of dq, mostly in L2; k, v, dk and dv once. Heads that share keys follow one
//           another in a block, so that dk and dv are summed in registers
// code      opforge/attention/wgmma_backward.h, wgmma_backward_wide.h beyond 128 dimensions, wgmma_backward_launch.h
// config    STAGES blocks of queries, and of what arrives for their outputs, in shared memory
// limits    sm_90a; head dimensions to 256. They cost as much as the next of 64, 128, 192 with values of 128, and 256. Beyond 128 a block has 64 keys,
//           and one product more is computed than there are. Rows that the TMA cannot address (strides that are no multiples of 16 bytes) are
//           copied first. Memory: a float32 dq beside the tensors
// precision sums in float32; weights and slopes are rounded to the dtype before a product; exponentials by ex2.approx
// repeats   the last bits of dq differ from run to run: the order in which blocks of keys add to it is that in which they come. dk and dv repeat;
//           cuda_wgmma_ordered repeats in all three
/* opforge
arch = "sm_90a"
deterministic = false
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
heads_fit_registers = "head_dim <= 256 and value_dim <= 256"
lengths_fit_a_coordinate = "queries < 268435456 and keys < 268435456"
no_bias = "not has_bias"
no_mask = "not has_mask"
no_dropout = "dropout == 0"

[space]
STAGES = [2, 3]

[default]
STAGES = 2
*/
#include "opforge/attention/wgmma_backward_launch.h"

namespace {

struct Config {
  static constexpr int kStages = STAGES;
  static constexpr bool kOrdered = false;
};

}  // namespace

OPFORGE_EXPORT(run, opforge::attention::attention_backward<Config>)
