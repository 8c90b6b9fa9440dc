// Groups of threads that stay: x and dy wait in registers, dweight and dbias grow where their columns' threads are.
//
// moves     3 * rows * cols * itemsize bytes: the least possible; a row of partial sums for each group, mostly in L2; see opforge/norm/backward.h
// limits    262144 columns: the registers of a cluster of 16 blocks; rows past 16384 columns of 16 bits (8192 of 32) need clusters, sm_90 or later
/* opforge
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "cols <= 262144"
*/
#include "opforge/norm/backward.h"

namespace {

void layernorm_backward(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView dy, opforge::TensorView dx, opforge::TensorView dweight,
                        opforge::TensorView dbias, double eps) {
  opforge::norm_gradient(x, weight, dy, dx, dweight, &dbias, eps,
                         [](const auto& call, cudaStream_t stream) { opforge::launch_norm_gradient<true>(call, stream); });
}

}  // namespace

OPFORGE_EXPORT(run, layernorm_backward)
