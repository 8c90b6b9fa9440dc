// A packed product for each image: channels times pixels, over filters and taps. What a pixel is given is gathered when a panel is packed.
//
// moves     dy is read kernel_h * kernel_w times over, out of caches; dx is written once where filters * taps <= DEPTH
// code      conv/gradients_host.h on the product of gemm/host.h
// limits    with strides above 1 most of what is gathered is 0, and multiplied all the same; gathering is not vectorised
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

void conv2d_input_grad(opforge::TensorView x, opforge::TensorView w, opforge::TensorView dy, opforge::TensorView dx,
                       int64_t stride_h, int64_t stride_w, int64_t pad_top, int64_t pad_bottom, int64_t pad_left,
                       int64_t pad_right, int64_t dilation_h, int64_t dilation_w, int64_t) {
  const opforge::conv::Shape shape = opforge::conv::shape_of(x, w, dy, {stride_h, pad_top, pad_bottom, dilation_h},
                                                             {stride_w, pad_left, pad_right, dilation_w});
  OPFORGE_CHECK_SAME_SHAPE(x, dx);
  OPFORGE_CHECK_SAME_DTYPE(x, dx);
  OPFORGE_DISPATCH_DTYPE(x, T, (opforge::conv::image_gradient<opforge::gemm::Tuned, T>(w, dy, dx, shape)));
}

}  // namespace

OPFORGE_EXPORT(run, conv2d_input_grad)
