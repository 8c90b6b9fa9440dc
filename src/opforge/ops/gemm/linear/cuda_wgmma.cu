// The roles of ../matmul/cuda_wgmma; a consumer applies bias and activation to its sums while the other one multiplies.
//
// moves     x and w as ../matmul/cuda_wgmma, y once by TMA under the products of the next tile. An activation in a pass of its own
//           moves 2 * rows * n more
// idea      a tile's biases are loaded before its products, two neighbours a lane, and passed from lane to lane after them: one wait for
//           memory a tile, under the products, instead of some for every 64 columns after them
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
MIXED = 1

[limits]
lead_fits_the_pipeline = "LEAD < STAGES"
stages_fit_shared_memory = "STAGES * (128 + (BLOCK_N + 63) // 64 * 64) * 128 + 16384 * OUT_BOXES + 2048 <= shared_bytes_per_block"
*/
#include "opforge/gemm/wgmma/tunables.h"
#include "opforge/gemm/linear_device.h"

// Tunable, beside those of the product: whether half of the reciprocals in silu are multiplied out, where the unit for special
// operations (16 a clock) would be what the epilogue waits for.
#ifndef MIXED
#define MIXED 1
#endif

namespace {

namespace wgmma = opforge::wgmma;

template <typename T>
void product_of(const opforge::Matrix& x, const opforge::Matrix& w, const opforge::Matrix& y, cudaStream_t stream, const opforge::TensorView& bias, int64_t activation) {
  wgmma::launch_product<wgmma::Wide<T>, wgmma::Narrow<T>, T, false>(x, w, y, stream, opforge::linear::epilogue_of<T, MIXED>(bias, y, activation), wgmma::NoPromotion{});
}

void linear(opforge::TensorView x, opforge::TensorView w, opforge::TensorView bias, opforge::TensorView y, int64_t activation) {
  const opforge::Matrix left = OPFORGE_DEVICE_MATRIX(x), right = OPFORGE_DEVICE_MATRIX(w).transposed(), out = OPFORGE_DEVICE_MATRIX(y);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  if (out.numel() > 0) OPFORGE_DISPATCH_16_BITS(left, T, product_of<T>(left, right, out, opforge::current_stream(x), bias, activation));
}

}  // namespace

OPFORGE_EXPORT(run, linear)
