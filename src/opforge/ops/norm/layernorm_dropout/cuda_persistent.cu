// layernorm's kernels with dropout applied to the result in registers: each thread makes the random words of its own elements.
//
// moves     2 * rows * cols * itemsize bytes: the least possible, no mask is stored; see opforge/norm/rows.h, opforge/norm/layernorm.h, opforge/numeric/philox.h
// limits    262144 columns: the registers of a cluster of 16 blocks. Past a block's registers (32768 columns of 16 bits, 16384
//           of 32) it needs clusters: sm_90 or later
/* opforge
like = "opforge/norm/rows.h"
[supports]
some_stay = "p < 1"
*/
#include "opforge/norm/layernorm.h"
#include "opforge/numeric/philox.h"

namespace {

struct Drops {
  static constexpr int kBlocks = 0;
  int64_t cols;
  opforge::Dropout dropout;

  template <int N>
  __device__ __forceinline__ void operator()(int64_t r, int c, float (&result)[N]) const {
    dropout.apply(r * cols + c, result);
  }
};

void layernorm_dropout(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y, double eps,
                       double p, int64_t seed) {
  opforge::check_rows({"x", x});
  opforge::launch_layernorm(x, weight, bias, y, eps, Drops{x.size(1), opforge::Dropout(p, seed)});
}

}  // namespace

OPFORGE_EXPORT(run, layernorm_dropout)
