// The roles of ../matmul/cuda_wgmma; a consumer applies bias, activation and residual to its sums while the other one multiplies.
//
// moves     x and w as ../matmul/cuda_wgmma, residual and y once by TMA, under the products of this tile and the next.
//           Passes of their own move 2 or 4 * rows * n more
// idea      after the terms of a tile the pipeline carries the residual: its boxes lie in shared memory when the sums are done
// code      the pipeline, the roles and the way out are in opforge/gemm/wgmma/launch.h, the epilogue in opforge/gemm/linear_device.h
// limits    sm_90a; an x stored column by column, and rows that do not begin at multiples of 16 bytes, are right too, and slow
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
rows_of_whole_16_bytes = "n % 8 == 0 and k % 8 == 0"

[space]
BLOCK_N = [64, 128, 160, 192, 224, 256]
STAGES = [3, 4, 5, 6, 7]
CLUSTER_M = [1, 2]
CLUSTER_N = [1, 2]
GROUP = [1, 2, 4, 8, 16]
OUT_BOXES = [1, 2, 4]
LEAD = [0, 1, 2, 3]
NARROW = [0, 1, 2]
OVERLAP = [0, 1]
MIXED = [0, 1]

[default]
BLOCK_N = 256
STAGES = 4
CLUSTER_M = 2
CLUSTER_N = 1
GROUP = 8
OUT_BOXES = 2
LEAD = 2
NARROW = 1
OVERLAP = 1
MIXED = 0

[limits]
lead_fits_the_pipeline = "LEAD < STAGES"
stages_fit_shared_memory = "STAGES * (128 + (BLOCK_N + 63) // 64 * 64) * 128 + 16384 * OUT_BOXES + 2048 <= shared_bytes_per_block"
*/
#include "opforge/gemm/wgmma/tunables.h"
#include "opforge/gemm/linear_device.h"

// Tunable, beside those of the product: whether half of the reciprocals in silu are multiplied out, where the unit for special
// operations (16 a clock) would be what the epilogue waits for.
#ifndef MIXED
#define MIXED 0
#endif

namespace {

namespace wgmma = opforge::wgmma;

template <typename T>
void product_of(const opforge::Matrix& x, const opforge::Matrix& w, const opforge::Matrix& y, cudaStream_t stream, const opforge::TensorView& bias, const opforge::Matrix& residual,
                int64_t activation) {
  const auto epilogue = opforge::linear::epilogue_of<T, MIXED>(bias, y, activation, opforge::linear::residual_of<T>(residual));
  wgmma::launch_product<wgmma::Wide<T>, wgmma::Narrow<T>, T, false>(x, w, y, stream, epilogue, wgmma::NoPromotion{}, residual);
}

void linear_add(opforge::TensorView x, opforge::TensorView w, opforge::TensorView bias, opforge::TensorView residual, opforge::TensorView y, int64_t activation) {
  const opforge::Matrix left = OPFORGE_DEVICE_MATRIX(x), right = OPFORGE_DEVICE_MATRIX(w).transposed(), out = OPFORGE_DEVICE_MATRIX(y);
  opforge::check_product(left, right, out);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  opforge::check_same_dtype(left, out);
  const opforge::Matrix added = OPFORGE_DEVICE_MATRIX(residual);
  opforge::linear::check_residual(added, out);
  if (out.numel() > 0) OPFORGE_DISPATCH_16_BITS(left, T, product_of<T>(left, right, out, opforge::current_stream(x), bias, added, activation));
}

}  // namespace

OPFORGE_EXPORT(run, linear_add)
