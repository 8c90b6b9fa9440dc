// Tensor cores through mma.sync: tiles of a and b arrive in shared memory by copies that overlap with the products.
//
// moves     as cuda_tiled, in 16-bit elements: half the shared-memory traffic of float32 tiles; float32 elements where TF32 is asked for
// code      the pipeline and the products are in opforge/gemm/mma.h, which ../linear and ../batched_matmul have too
// precision the last 13 bits of float32 factors are cut off, sums are float32
// limits    mma.sync reaches about two thirds of what Hopper's wgmma can; operands whose rows do not begin at multiples
//           of 16 bytes are copied element by element, without overlap
// source    PTX ISA, sections on mma.m16n8k16 and m16n8k8, ldmatrix and cp.async; sm_80 and later
/* opforge
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16", "float32"]

[supports]
products_of_tensor_cores = "dtype != 'float32' or precision == 'tf32'"

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
stages_fit_shared_memory = "2 * STAGES * (BLOCK_M * (BLOCK_K + 8) + BLOCK_K * (BLOCK_N + 8)) <= shared_bytes_per_block"
sums_fit_registers = "BLOCK_M * BLOCK_N <= 32768"
every_thread_copies_a_chunk = "min(BLOCK_M, BLOCK_N) * BLOCK_K >= 2048"
*/
#include "opforge/gemm/mma.h"
#include "opforge/gemm/mma_tunables.h"

namespace {

template <typename T>
void product_of(const opforge::Matrix& a, const opforge::Matrix& b, const opforge::Matrix& c, cudaStream_t stream) {
  opforge::mma::launch_product<BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP, T, T>(a, b, c, stream, opforge::gemm::Unchanged{});
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t precision) {
  const opforge::Matrix left = OPFORGE_DEVICE_MATRIX(a), right = OPFORGE_DEVICE_MATRIX(b), out = OPFORGE_DEVICE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  if (out.numel() > 0) OPFORGE_DISPATCH_TENSOR_CORES(left, precision == 1, T, product_of<T>(left, right, out, opforge::current_stream(a)));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
