// x as one row of 16-byte vectors; a multiplication and a shift find the channel of each: scale_shift(x, scale, shift, y).
//
// moves     each of x and y once; scale and shift are read from the caches
// limits    where neither the channels (channels last) nor the positions fill whole vectors, they are read element by element
#include "opforge/broadcast_device.h"

/* opforge
default = { THREADS = 256, UNROLL = 1 }
[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4, 8]
[limits]
one_block_does_not_outgrow_small_calls = "THREADS * UNROLL <= 2048"
*/

namespace {

struct ScaleShift {
  __device__ __forceinline__ float operator()(float x, float scale, float shift) const { return fmaf(x, scale, shift); }
};

void scale_shift(opforge::TensorView x, opforge::TensorView scale, opforge::TensorView shift, opforge::TensorView y) {
  opforge::check_alike({{"x", x}, {"y", y}});
  opforge::check_alike({{"scale", scale}, {"shift", shift}});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(scale);
  OPFORGE_CHECK_NDIM(x, 3);
  OPFORGE_CHECK_NDIM(scale, 1);
  OPFORGE_CHECK_SAME_DTYPE(x, scale);
  OPFORGE_CHECK(scale.size(0) == x.size(1), ValueError, "scale must have ", x.size(1), " elements (got ", scale.size(0), ")");
  opforge::BroadcastAxes axes;
  axes.push(x.size(2), 0);
  axes.push(x.size(1), 1);
  axes.push(x.size(0), 0);
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(
      x, T,
      opforge::broadcast_map<THREADS, UNROLL>(opforge::current_stream(x), axes, opforge::data<T>(y), ScaleShift(), opforge::data<const T>(x),
                                              opforge::Pointers<const T, 2>{{opforge::data<const T>(scale), opforge::data<const T>(shift)}}));
}

}  // namespace

OPFORGE_EXPORT(run, scale_shift)
