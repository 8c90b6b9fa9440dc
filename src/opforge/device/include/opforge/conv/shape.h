// opforge/conv/shape.h - the arguments of convolutions of images, for kernels of both kinds, .cpp and .cu.
#ifndef OPFORGE_CONV_SHAPE_H_
#define OPFORGE_CONV_SHAPE_H_

#include "opforge/ffi.h"

namespace opforge {
namespace conv {

/// How a kernel moves over an image, in rows or in columns.
struct Steps {
  int64_t stride, before, behind, dilation;  // before, behind: zeros
};

/// A convolution's sizes. Channels and filters are those of one group.
struct Shape {
  int64_t batch, groups, channels, filters, height, width, kernel_h, kernel_w, out_h, out_w;
  Steps rows, cols;

  int64_t taps() const { return kernel_h * kernel_w; }
  int64_t terms() const { return channels * taps(); }
};

/// The sizes of a convolution of x with w that gives y. Raises ValueError where they do not fit, TypeError where dtypes differ.
inline Shape shape_of(const TensorView& x, const TensorView& w, const TensorView& y, const Steps& rows,
                      const Steps& cols) {
  OPFORGE_CHECK_NDIM(x, 4);
  OPFORGE_CHECK_NDIM(w, 4);
  OPFORGE_CHECK_NDIM(y, 4);
  OPFORGE_CHECK_SAME_DTYPE(x, w);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK(w.size(1) > 0 && x.size(1) % w.size(1) == 0 && x.size(1) > 0, ValueError, "the channels of x (",
                x.size(1), ") are no multiple of those of w (", w.size(1), ")");
  const int64_t groups = x.size(1) / w.size(1);
  OPFORGE_CHECK(w.size(0) % groups == 0 && y.size(1) == w.size(0), ValueError, "w has ", w.size(0), " filters for ",
                groups, " groups and ", y.size(1), " channels of y");
  for (const Steps& steps : {rows, cols})
    OPFORGE_CHECK(steps.stride > 0 && steps.dilation > 0 && steps.before >= 0 && steps.behind >= 0, ValueError,
                  "strides and dilations must be above 0, padding not below");
  Shape shape{x.size(0), groups,    w.size(1), w.size(0) / groups, x.size(2), x.size(3),
              w.size(2), w.size(3), y.size(2), y.size(3),          rows,      cols};
  const auto fits = [](int64_t size, int64_t kernel, int64_t out, const Steps& steps) {
    const int64_t room = size + steps.before + steps.behind - steps.dilation * (kernel - 1) - 1;
    return kernel > 0 && room >= 0 && out == room / steps.stride + 1;
  };
  OPFORGE_CHECK(y.size(0) == shape.batch && fits(shape.height, shape.kernel_h, shape.out_h, rows) &&
                    fits(shape.width, shape.kernel_w, shape.out_w, cols),
                ValueError, "y does not have the rows and columns that follow from x, w and the steps");
  return shape;
}

}  // namespace conv
}  // namespace opforge

#endif  // OPFORGE_CONV_SHAPE_H_
