// x as one row of 16-byte vectors; a multiplication and a shift find the channel of each: scale_shift(x, scale, shift, y).
//
// moves     each of x and y once; scale and shift are read from the caches
// limits    where neither the channels (channels last) nor the positions fill whole vectors, they are read element by element
#include "opforge/elementwise/broadcast_device.h"

/* opforge
like = "opforge/elementwise/broadcast_device.h"
*/

namespace {

struct ScaleShift {
  __device__ __forceinline__ float operator()(float x, float scale, float shift) const { return fmaf(x, scale, shift); }
};

void scale_shift(opforge::TensorView x, opforge::TensorView scale, opforge::TensorView shift, opforge::TensorView y) {
  opforge::check_same_layout({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  const opforge::BroadcastAxes axes = opforge::axes_of_channels({"x", x}, {{"scale", scale}, {"shift", shift}});
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(
      x, T,
      opforge::broadcast_map<THREADS, UNROLL>(opforge::current_stream(x), axes, opforge::data<T>(y), ScaleShift(), opforge::data<const T>(x),
                                              opforge::Pointers<const T, 2>{{opforge::data<const T>(scale), opforge::data<const T>(shift)}}));
}

}  // namespace

OPFORGE_EXPORT(run, scale_shift)
