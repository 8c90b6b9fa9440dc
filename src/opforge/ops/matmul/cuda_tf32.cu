// TF32 on Hopper: the ring of cuda_wgmma with float32 tiles, which the TMA rounds on their way in; other layouts are turned round before.
//
// moves     as cuda_wgmma with elements twice as large. wgmma reads TF32 with terms side by side only: an operand that lies otherwise (b stored
//           row by row) is read and written once more before, 8 * n * k bytes
// code      the ring, the roles and the way out are in opforge/gemm_wgmma.h, the instruction in opforge/hopper_tf32.h
// limits    sm_90a, float32 operands in "tf32". c goes out from registers, in pieces of 32 bytes
// precision factors of 11 bits, rounded; sums in float32 from the first term to the last, in the tensor cores
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float32"]
supports = {products_of_tensor_cores = "precision == 'tf32'"}
space = {BLOCK_N = [64, 128, 192, 256], STAGES = [3, 4, 5, 6], CLUSTER_M = [1, 2], CLUSTER_N = [1, 2], GROUP = [1, 2, 4, 8, 16], LEAD = [0, 1, 2, 3], NARROW = [0, 1], OVERLAP = [0, 1]}
default = {BLOCK_N = 256, STAGES = 4, CLUSTER_M = 2, CLUSTER_N = 1, GROUP = 8, LEAD = 2, NARROW = 1, OVERLAP = 1}
limits = {lead_fits_the_ring = "LEAD < STAGES", stages_fit_shared_memory = "STAGES * (128 + BLOCK_N) * 128 + 2048 <= 232448", b_is_shared_in_whole_boxes = "BLOCK_N // 64 % CLUSTER_M == 0"}
*/
#define OUT_BOXES 0
#include "opforge/gemm_wgmma_tunables.h"
#include "opforge/hopper_tf32.h"
#include "opforge/scratch.h"

namespace {

using opforge::Matrix;
namespace wgmma = opforge::wgmma;

constexpr int kTile = 64, kTurners = 256;

// Writes an operand with its terms side by side: `lines` rows or columns of the product's, of `terms` each, `pitch` apart in the copy.
// kTurned: neighbours in memory are neighbours among the lines.
template <bool kTurned>
__global__ void __launch_bounds__(kTurners) lay_out(const float* from, int64_t line_stride, int64_t term_stride, float* to, int64_t pitch, int lines, int terms, int tiles_across) {
  __shared__ float tile[kTile][kTile + 1];
  const int line0 = static_cast<int>(blockIdx.x) / tiles_across * kTile, term0 = static_cast<int>(blockIdx.x) % tiles_across * kTile;
  const int across = threadIdx.x % kTile, down = threadIdx.x / kTile;
#pragma unroll
  for (int i = 0; i < kTile; i += kTurners / kTile) {
    const int line = kTurned ? across : down + i, term = kTurned ? down + i : across;
    if (line0 + line < lines && term0 + term < terms) tile[line][term] = from[(line0 + line) * line_stride + (term0 + term) * term_stride];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile; i += kTurners / kTile) {
    const int line = down + i, term = across;
    if (line0 + line < lines && term0 + term < terms) to[(line0 + line) * pitch + term0 + term] = tile[line][term];
  }
}

// An operand as `lines` x terms, as the TMA and wgmma take it: itself, or a copy in memory that lives as long as this.
class TermsFirst {
 public:
  TermsFirst(const Matrix& matrix, cudaStream_t stream)
      : fits_(fits(matrix)), pitch_(opforge::ceil_div(matrix.cols, 4) * 4), copy_(fits_ ? 0 : matrix.rows * pitch_ * 4, stream), matrix_(matrix) {
    if (fits_) return;
    const int tiles_across = static_cast<int>(opforge::ceil_div(matrix.cols, kTile));
    const int64_t tiles = opforge::ceil_div(matrix.rows, kTile) * tiles_across;
    OPFORGE_CHECK(tiles <= 2147483647, ValueError, matrix.name, " has ", tiles, " tiles, more than a grid may hold");
    float* to = static_cast<float*>(copy_.data());
    const auto lay = matrix.row < matrix.col ? lay_out<true> : lay_out<false>;
    OPFORGE_LAUNCH(lay, static_cast<unsigned>(tiles), kTurners, 0, stream, matrix.typed<const float>(), matrix.row, matrix.col, to, pitch_, static_cast<int>(matrix.rows),
                   static_cast<int>(matrix.cols), tiles_across);
    matrix_ = Matrix{matrix.name, to, matrix.dtype, 1, matrix.rows, matrix.cols, 0, pitch_, 1};
  }
  const Matrix& matrix() const { return matrix_; }

 private:
  static bool fits(const Matrix& matrix) {
    // an empty sum reads nothing
    if (matrix.cols == 0) return true;
    return matrix.col == 1 && matrix.row % 4 == 0 && matrix.row >= matrix.cols && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
  }

  bool fits_;
  int64_t pitch_;
  opforge::Scratch copy_;
  Matrix matrix_;
};

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t precision) {
  const Matrix left = OPFORGE_DEVICE_MATRIX(a), right = OPFORGE_DEVICE_MATRIX(b), out = OPFORGE_DEVICE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  OPFORGE_CHECK(opforge::float_kind(left.dtype) == opforge::FloatKind::kFloat32, TypeError, "a must be float32 (got ", opforge::dtype_name(left.dtype), ")");
  OPFORGE_CHECK(precision == 1, ValueError, "precision must be tf32: for all digits take cuda_split");
  if (out.numel() == 0) return;
  cudaStream_t stream = opforge::current_stream(a);
  const TermsFirst rows(left, stream), columns(right.transposed(), stream);
  wgmma::launch_product<wgmma::Wide<float>, wgmma::Narrow<float>, float, false>(rows.matrix(), columns.matrix().transposed(), out, stream, opforge::gemm::Unchanged{},
                                                                                wgmma::Kept{});
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
