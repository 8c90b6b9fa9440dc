// Groups of threads that stay: x and dy wait in registers, dweight and dbias grow where their columns' threads are.
//
// moves     3 * rows * cols * itemsize bytes: the least possible; a row of partial sums for each group, mostly in L2; see opforge/norm_backward.h
// limits    262144 columns: the registers of a cluster of 16 blocks; rows past 16384 columns of 16 bits (8192 of 32) need clusters, sm_90 or later
/* opforge
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "cols <= 262144"
*/
#include "opforge/norm_backward.h"

namespace {

void layernorm_backward(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView dy, opforge::TensorView dx, opforge::TensorView dweight,
                        opforge::TensorView dbias, double eps) {
  opforge::check_rows_alike({{"x", x}, {"dy", dy}, {"dx", dx}});
  opforge::check_columns({{"weight", weight}, {"dweight", dweight}, {"dbias", dbias}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const opforge::NormGradient<T> call{opforge::as_rows<const T>(x), opforge::as_rows<const T>(dy), opforge::data<const T>(weight), opforge::as_rows<T>(dx),
                                        opforge::data<T>(dweight),    opforge::data<T>(dbias),       static_cast<float>(eps)};
    opforge::launch_norm_gradient<true>(call, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, layernorm_backward)
