// Register tiles of filters and pixels over planes with their padding in them, in which every tap is one offset.
//
// moves     x is copied once into planes of float32 (not at all where nothing is padded and NCHW float32 is given), w is read where it
//           lies; y is written once
// code      planes and tiles are in opforge/conv/; a convolution with strides becomes one without, on planes by remainder
// limits    16-bit elements are widened to float32: no use is made of the CPU's own 16-bit products. Columns behind the end of a
//           plane's rows are computed and thrown away: (kernel_w - 1) / (out_w + kernel_w - 1) of the work
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
ISA = [0, 1, 2, 3]

[default]
ISA = 0
*/
#include "opforge/conv/host.h"

#ifndef ISA
#define ISA 0
#endif

namespace {

using Given = std::optional<opforge::TensorView>;

void conv2d(opforge::TensorView x, opforge::TensorView w, Given bias, opforge::TensorView y, int64_t stride_h,
            int64_t stride_w, int64_t pad_top, int64_t pad_bottom, int64_t pad_left, int64_t pad_right,
            int64_t dilation_h, int64_t dilation_w, int64_t) {
  const opforge::conv::Shape shape = opforge::conv::shape_of(x, w, y, {stride_h, pad_top, pad_bottom, dilation_h},
                                                             {stride_w, pad_left, pad_right, dilation_w});
  OPFORGE_DISPATCH_DTYPE(x, T, (opforge::conv::convolve<ISA, T>(x, w, bias, y, shape, opforge::conv::Unchanged())));
}

}  // namespace

OPFORGE_EXPORT(run, conv2d)
