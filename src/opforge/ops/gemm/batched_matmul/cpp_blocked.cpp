// The packed product of ../matmul/cpp_blocked for every matrix of a batch; alpha and beta meet a register tile before it is stored.
//
// moves     a and b are packed once, c is read once where beta is not 0, y is written once where k <= DEPTH
// idea      16 matrices and more are shared out among the threads whole; fewer are each shared out by themselves
// code      the product is in opforge/gemm/host.h
// limits    float16 and bfloat16 are widened to float32 while packing: no use is made of the CPU's own 16-bit products
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
DEPTH = [128, 192, 256, 320, 384]
BLOCK = [6, 12, 24, 36]
STRIP = [512, 1024, 2048, 4096]
ISA = [0, 1, 2, 3]

[default]
DEPTH = 384
BLOCK = 24
STRIP = 2048
ISA = 0
*/
#include "opforge/gemm/host_tunables.h"

namespace {

template <typename T>
void product_of(const opforge::Matrix& a, const opforge::Matrix& b, const opforge::Matrix& c, const opforge::Matrix& y, float alpha, float beta) {
  // beta = 0 forgets c, NaN included
  opforge::gemm::multiply<opforge::gemm::Tuned, T, T>(a, b, y, [&](float* line, int64_t matrix, int64_t row, int64_t col, int64_t cols) {
    const T* added = c.typed<const T>() + matrix * c.batch_stride + row * c.row + col * c.col;
    for (int64_t j = 0; j < cols; ++j) line[j] *= alpha;
    if (beta != 0.0f)
      for (int64_t j = 0; j < cols; ++j) line[j] += beta * opforge::load_as_float(added[j * c.col]);
  });
}

void batched_matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, opforge::TensorView y, double alpha, double beta, int64_t /*precision*/) {
  const opforge::Matrix left = OPFORGE_MATRICES(a), right = OPFORGE_MATRICES(b), added = OPFORGE_MATRICES(c), out = OPFORGE_MATRICES(y);
  opforge::check_product(left, right, out);
  opforge::check_product(left, right, added);
  opforge::check_same_dtype(left, out);
  opforge::check_same_dtype(left, added);
  if (out.numel() > 0) OPFORGE_DISPATCH_DTYPE(a, T, product_of<T>(left, right, added, out, static_cast<float>(alpha), static_cast<float>(beta)));
}

}  // namespace

OPFORGE_EXPORT(run, batched_matmul)
