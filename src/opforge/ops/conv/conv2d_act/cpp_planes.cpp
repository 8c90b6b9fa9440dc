// The register tiles of ../conv2d/cpp_planes; sums begin with the bias, and residual and activation are applied before they are stored.
//
// moves     as ../conv2d/cpp_planes, and the residual once
// code      planes and tiles are in opforge/conv/, what follows the sums in opforge/conv/finish_host.h
// limits    those of ../conv2d/cpp_planes
/* opforge
layouts = ["contiguous", "rows", "strided"]

[space]
ISA = [0, 1, 2, 3]

[default]
ISA = 0
*/
#include "opforge/conv/finish_host.h"

#ifndef ISA
#define ISA 0
#endif

namespace {

using Given = std::optional<opforge::TensorView>;

void conv2d_act(opforge::TensorView x, opforge::TensorView w, Given bias, Given residual, opforge::TensorView y,
                int64_t activation, int64_t stride_h, int64_t stride_w, int64_t pad_top, int64_t pad_bottom,
                int64_t pad_left, int64_t pad_right, int64_t dilation_h, int64_t dilation_w, int64_t) {
  const opforge::conv::Shape shape = opforge::conv::shape_of(x, w, y, {stride_h, pad_top, pad_bottom, dilation_h},
                                                             {stride_w, pad_left, pad_right, dilation_w});
  OPFORGE_DISPATCH_DTYPE(
      x, T, (opforge::conv::convolve<ISA, T>(x, w, bias, y, shape, opforge::conv::Finish<T>(residual, y, activation))));
}

}  // namespace

OPFORGE_EXPORT(run, conv2d_act)
