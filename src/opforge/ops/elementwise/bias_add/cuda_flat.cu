// All elements in one row of 16-byte vectors; a multiplication and a shift find the column of each: bias_add(x, bias, y).
#include "opforge/elementwise/broadcast_device.h"

/* opforge
like = "opforge/elementwise/broadcast_device.h"
*/

namespace {

struct Add {
  __device__ __forceinline__ float operator()(float x, float bias) const { return x + bias; }
};

void bias_add(opforge::TensorView x, opforge::TensorView bias, opforge::TensorView y) {
  opforge::check_same_layout({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(bias);
  OPFORGE_CHECK_NDIM(x, 2);
  OPFORGE_CHECK_NDIM(bias, 1);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  OPFORGE_CHECK_CONTIGUOUS(bias);
  OPFORGE_CHECK(bias.size(0) == x.size(1), ValueError, "bias must have ", x.size(1), " elements (got ", bias.size(0), ")");
  opforge::BroadcastAxes axes;
  axes.push(x.size(1), 1);
  axes.push(x.size(0), 0);
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T,
                         opforge::broadcast_map<THREADS, UNROLL>(opforge::current_stream(x), axes, opforge::data<T>(y), Add(), opforge::data<const T>(x),
                                                                 opforge::Pointers<const T, 1>{{opforge::data<const T>(bias)}}));
}

}  // namespace

OPFORGE_EXPORT(run, bias_add)
