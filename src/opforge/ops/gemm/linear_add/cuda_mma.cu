// Tensor cores through mma.sync, as in ../matmul/cuda_mma; bias, activation and residual meet the sums in registers.
//
// moves     x, w and bias once for each row or column of tiles, residual and y once. Passes of their own move 2 or
//           4 * rows * n more
// code      the pipeline and the products are in opforge/gemm/mma.h, the epilogue in opforge/gemm/linear_device.h
// limits    mma.sync reaches about two thirds of what Hopper's wgmma can; operands whose rows do not begin at multiples
//           of 16 bytes are copied element by element, without overlap
/* opforge
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[space]
BLOCK_M = [32, 64, 128]
BLOCK_N = [64, 128, 256]
BLOCK_K = [32, 64]
STAGES = [2, 3, 4]
GROUP = [1, 4, 8, 16]

[default]
BLOCK_M = 128
BLOCK_N = 128
BLOCK_K = 32
STAGES = 4
GROUP = 8

[limits]
stages_fit_shared_memory = "2 * STAGES * (BLOCK_M + BLOCK_N) * (BLOCK_K + 8) <= shared_bytes_per_block"
sums_fit_registers = "BLOCK_M * BLOCK_N <= 32768"
every_thread_copies_a_chunk = "min(BLOCK_M, BLOCK_N) * BLOCK_K >= 2048"
*/
#include "opforge/gemm/mma.h"
#include "opforge/gemm/mma_tunables.h"
#include "opforge/gemm/linear_device.h"

namespace {

template <typename T>
void product_of(const opforge::Matrix& x, const opforge::Matrix& w, const opforge::Matrix& y, cudaStream_t stream, const opforge::TensorView& bias, const opforge::Matrix& residual,
                int64_t activation) {
  const auto epilogue = opforge::linear::epilogue_of<T>(bias, y, activation, opforge::linear::residual_of<T>(residual));
  opforge::mma::launch_product<BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP, T, T>(x, w, y, stream, epilogue);
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
