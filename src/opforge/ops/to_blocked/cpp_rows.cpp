// One row of a tile after the other, in registers where its size is a power of two: to_blocked(x, y).
#include "opforge/permute_host.h"

namespace {

void to_blocked(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_NDIM(x, 5);
  OPFORGE_CHECK_NDIM(y, 5);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  for (int k = 0; k < 5; ++k)
    OPFORGE_CHECK(x.size(k) == y.size(k == 2 ? 3 : k == 3 ? 2 : k), ValueError, "y must have the shape of x with axes 2 and 3 exchanged");
  OPFORGE_DISPATCH_BITS(x, T,
                        opforge::exchange_middle(opforge::data<const T>(x), opforge::data<T>(y), x.size(0) * x.size(1), x.size(2), x.size(3), x.size(4)));
}

}  // namespace

OPFORGE_EXPORT(run, to_blocked)
