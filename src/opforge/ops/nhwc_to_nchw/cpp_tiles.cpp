// Squares of 16 x 16 turned in registers, in patches whose cache lines are finished together: nhwc_to_nchw(x, y).
#include "opforge/permute_host.h"

namespace {

void nhwc_to_nchw(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_NDIM(x, 3);
  OPFORGE_CHECK_NDIM(y, 3);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK(x.size(0) == y.size(0) && x.size(1) == y.size(2) && x.size(2) == y.size(1), ValueError, "y must have the shape of x with its last two axes exchanged");
  OPFORGE_DISPATCH_BITS(x, T, opforge::transpose(opforge::data<const T>(x), opforge::data<T>(y), x.size(0), x.size(1), x.size(2)));
}

}  // namespace

OPFORGE_EXPORT(run, nhwc_to_nchw)
