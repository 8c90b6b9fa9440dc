// Tiles of 64 x 64 through shared memory, read and written in 16-byte accesses: nchw_to_nhwc(x, y).
//
// moves     2 * elements * itemsize bytes: the least possible
// limits    where the positions of a channel, or the channels of a position, is no multiple of 16 bytes, that side goes element by element; a side shorter than 64 leaves threads idle
#include "opforge/permute_device.h"

namespace {

void nchw_to_nhwc(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_NDIM(x, 3);
  OPFORGE_CHECK_NDIM(y, 3);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(y);
  OPFORGE_CHECK(x.size(0) == y.size(0) && x.size(1) == y.size(2) && x.size(2) == y.size(1), ValueError, "y must have the shape of x with its last two axes exchanged");
  OPFORGE_DISPATCH_BITS(
      x, T, opforge::transpose(opforge::current_stream(x), opforge::data<const T>(x), opforge::data<T>(y), x.size(0), x.size(1), x.size(2)));
}

}  // namespace

OPFORGE_EXPORT(run, nchw_to_nhwc)
