// Short rows in the registers of a warp or a block; past 32 KiB blocks or clusters that stay, with weight and bias in shared memory
// and the next row on its way while this one is normalised.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; weight and bias from cache, or once for each group that stays; see opforge/norm/rows.h, opforge/norm/layernorm.h
// limits    262144 columns: the registers of a cluster of 16 blocks. Past a block's registers (32768 columns of 16 bits, 16384
//           of 32) it needs clusters: sm_90 or later
/* opforge
like = "opforge/norm/rows.h"
*/
#include "opforge/norm/layernorm.h"

namespace {

void layernorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y, double eps) {
  opforge::launch_layernorm(x, weight, bias, y, eps, opforge::AsItIs());
}

}  // namespace

OPFORGE_EXPORT(run, layernorm)
