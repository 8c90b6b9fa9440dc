// The packed product of ../matmul/cpp_blocked; bias and activation are applied to a register tile before it is stored.
//
// moves     x and w are packed once, y is written once where k <= DEPTH, else read and written once per DEPTH terms
// code      the product is in opforge/gemm/host.h, the epilogue in opforge/gemm/linear_host.h
// limits    float16 and bfloat16 are widened to float32 while packing: no use is made of the CPU's own 16-bit products.
//           Up to eight rows read w where it lies and add up in another order than more do: a row alone may have other bits than in a batch
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
#include "opforge/gemm/linear_host.h"

namespace {

void linear(opforge::TensorView x, opforge::TensorView w, opforge::TensorView bias, opforge::TensorView y, int64_t activation) {
  const opforge::Matrix left = OPFORGE_MATRIX(x), right = OPFORGE_MATRIX(w).transposed(), out = OPFORGE_MATRIX(y);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  if (out.numel() > 0)
    OPFORGE_DISPATCH_DTYPE(x, T, (opforge::gemm::multiply<opforge::gemm::Tuned, T, T>(left, right, out, opforge::linear::Epilogue<T>(bias, out, activation))));
}

}  // namespace

OPFORGE_EXPORT(run, linear)
