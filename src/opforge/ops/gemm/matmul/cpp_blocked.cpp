// Packed panels that stay in cache, and a register tile of float32 sums that the compiler keeps in vector registers.
//
// moves     a is packed once for each strip of STRIP columns, b once; c is read and written once per DEPTH terms. Up to eight rows
//           of a read b where it lies, once for each four
// limits    float16 and bfloat16 are widened to float32 while packing: no use is made of the CPU's own 16-bit products
// code      the packing and the register tile are in opforge/gemm/host_tile.h, few rows in few_rows_host.h, which ../linear and
//           ../batched_matmul have too
// source    Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008;
//           the loop order is that of Van Zee and van de Geijn, BLIS, ACM TOMS 41(3), 2015
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

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  const opforge::Matrix left = OPFORGE_MATRIX(a), right = OPFORGE_MATRIX(b), out = OPFORGE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  if (out.numel() > 0) OPFORGE_DISPATCH_DTYPE(a, T, (opforge::gemm::multiply<opforge::gemm::Tuned, T, T>(left, right, out, opforge::gemm::Unchanged())));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
