// Axes over which b behaves alike are made one, then x is one row of 16-byte vectors: broadcast_add(x, b, y).
//
// moves     each of x and y once; b is read from the caches
// limits    where the innermost axes left over are shorter than a vector, or no multiple of it, b is read element by element
#include "opforge/elementwise/broadcast_device.h"

/* opforge
like = "opforge/elementwise/broadcast_device.h"
*/

namespace {

struct Add {
  __device__ __forceinline__ float operator()(float x, float b) const { return x + b; }
};

void broadcast_add(opforge::TensorView x, opforge::TensorView b, opforge::TensorView y) {
  opforge::check_same_layout({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  const opforge::BroadcastAxes axes = opforge::axes_of_broadcast({"x", x}, {"b", b});
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T,
                         opforge::broadcast_map<THREADS, UNROLL>(opforge::current_stream(x), axes, opforge::data<T>(y), Add(), opforge::data<const T>(x),
                                                                 opforge::Pointers<const T, 1>{{opforge::data<const T>(b)}}));
}

}  // namespace

OPFORGE_EXPORT(run, broadcast_add)
