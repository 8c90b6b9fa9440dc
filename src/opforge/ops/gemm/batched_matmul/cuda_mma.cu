// The tiles of ../matmul/cuda_mma with the batch as one more axis of the grid; alpha and beta meet the sums in registers.
//
// moves     a and b as ../matmul/cuda_mma; c once where beta is not 0. Scaling and adding afterwards would move 3 * batch * m * n more
// code      the pipeline and the products are in opforge/gemm/mma.h
// precision the last 13 bits of float32 factors are cut off where TF32 is asked for
// limits    mma.sync reaches about two thirds of what Hopper's wgmma can; operands whose rows do not begin at multiples
//           of 16 bytes are copied element by element, without overlap
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
stages_fit_shared_memory = "2 * STAGES * (BLOCK_M + BLOCK_N) * (BLOCK_K + 8) <= shared_bytes_per_block"
sums_fit_registers = "BLOCK_M * BLOCK_N <= 32768"
every_thread_copies_a_chunk = "min(BLOCK_M, BLOCK_N) * BLOCK_K >= 2048"
*/
#include "opforge/gemm/mma.h"
#include "opforge/gemm/mma_tunables.h"

namespace {

// alpha * sum + beta * c; beta = 0 forgets c, NaN included.
template <typename T>
struct Scaled {
  float alpha, beta;
  const T* c;
  int64_t batch, row, col;
  int m, n;

  __device__ __forceinline__ void begin(int matrix) { c += matrix * batch; }
  __device__ __forceinline__ float one(float sum, int at_row, int at_col) const {
    sum *= alpha;
    return beta != 0.0f && at_row < m && at_col < n ? fmaf(beta, opforge::load_as_float(c[at_row * row + at_col * col]), sum) : sum;
  }
  __device__ __forceinline__ void operator()(float& low, float& high, int at_row, int at_col) const {
    low = one(low, at_row, at_col);
    high = one(high, at_row, at_col + 1);
  }
};

template <typename T>
void product_of(const opforge::Matrix& a, const opforge::Matrix& b, const opforge::Matrix& c, const opforge::Matrix& y, cudaStream_t stream, float alpha, float beta) {
  const Scaled<T> epilogue{alpha, beta, c.typed<const T>(), c.batch_stride, c.row, c.col, static_cast<int>(y.rows), static_cast<int>(y.cols)};
  opforge::mma::launch_product<BLOCK_M, BLOCK_N, BLOCK_K, STAGES, GROUP, T, T, true>(a, b, y, stream, epilogue);
}

void batched_matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, opforge::TensorView y, double alpha, double beta, int64_t precision) {
  const opforge::Matrix left = OPFORGE_DEVICE_MATRICES(a), right = OPFORGE_DEVICE_MATRICES(b), added = OPFORGE_DEVICE_MATRICES(c), out = OPFORGE_DEVICE_MATRICES(y);
  opforge::check_product(left, right, out);
  opforge::check_product(left, right, added);
  opforge::check_same_dtype(left, out);
  opforge::check_same_dtype(left, added);
  if (out.numel() > 0)
    OPFORGE_DISPATCH_TENSOR_CORES(left, precision == 1, T,
                                  product_of<T>(left, right, added, out, opforge::current_stream(a), static_cast<float>(alpha), static_cast<float>(beta)));
}

}  // namespace

OPFORGE_EXPORT(run, batched_matmul)
