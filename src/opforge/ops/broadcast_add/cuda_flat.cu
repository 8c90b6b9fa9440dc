// Axes over which b behaves alike are made one, then x is one row of 16-byte vectors: broadcast_add(x, b, y).
//
// moves     each of x and y once; b is read from the caches
// limits    where the innermost axes left over are shorter than a vector, or no multiple of it, b is read element by element
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

struct Add {
  __device__ __forceinline__ float operator()(float x, float b) const { return x + b; }
};

void broadcast_add(opforge::TensorView x, opforge::TensorView b, opforge::TensorView y) {
  opforge::check_alike({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(b);
  OPFORGE_CHECK_NDIM(x, 4);
  OPFORGE_CHECK_NDIM(b, 4);
  OPFORGE_CHECK_SAME_DTYPE(x, b);
  OPFORGE_CHECK_CONTIGUOUS(b);
  opforge::BroadcastAxes axes;
  int64_t step = 1;
  for (int k = 3; k >= 0; --k) {
    OPFORGE_CHECK(b.size(k) == x.size(k) || b.size(k) == 1, ValueError, "axis ", k, " of b must be ", x.size(k), " or 1 (got ", b.size(k), ")");
    axes.push(x.size(k), b.size(k) == 1 ? 0 : step);
    step *= b.size(k);
  }
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T,
                         opforge::broadcast_map<THREADS, UNROLL>(opforge::current_stream(x), axes, opforge::data<T>(y), Add(), opforge::data<const T>(x),
                                                                 opforge::Pointers<const T, 1>{{opforge::data<const T>(b)}}));
}

}  // namespace

OPFORGE_EXPORT(run, broadcast_add)
