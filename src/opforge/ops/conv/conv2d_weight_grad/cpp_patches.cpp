// A packed product: filters times weights, over all outputs of all images. What a weight was multiplied with is gathered when a panel is packed.
//
// moves     x is read kernel_h * kernel_w times over, out of caches; partial sums are float32 and stay in one order: the same bits each time
// code      conv/gradients_host.h on the product of gemm/host.h
// limits    threads share filters and weights, not outputs; gathering is not vectorised
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
#include "opforge/conv/gradients_host.h"
#include "opforge/gemm/host_tunables.h"

namespace {

void conv2d_weight_grad(opforge::TensorView x, opforge::TensorView w, opforge::TensorView dy, opforge::TensorView dw,
                        int64_t stride_h, int64_t stride_w, int64_t pad_top, int64_t pad_bottom, int64_t pad_left,
                        int64_t pad_right, int64_t dilation_h, int64_t dilation_w, int64_t) {
  const opforge::conv::Shape shape = opforge::conv::shape_of(x, w, dy, {stride_h, pad_top, pad_bottom, dilation_h},
                                                             {stride_w, pad_left, pad_right, dilation_w});
  OPFORGE_CHECK_SAME_SHAPE(w, dw);
  OPFORGE_CHECK_SAME_DTYPE(w, dw);
  OPFORGE_DISPATCH_DTYPE(x, T, (opforge::conv::kernel_gradient<opforge::gemm::Tuned, T>(x, dy, dw, shape)));
}

}  // namespace

OPFORGE_EXPORT(run, conv2d_weight_grad)
