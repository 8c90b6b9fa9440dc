// The row waits in the registers of a warp, a block or a cluster of blocks.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; one exp an element; see opforge/onchip_rows.h
// limits    262144 columns: the registers of a cluster of 16 blocks. Past a block's registers (32768 columns of 16 bits,
//           16384 of 32) it needs clusters: sm_90 or later
/* opforge
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "cols <= 262144"
[space]
VECS = [2, 4]
SLICE = [256, 512, 1024]
PLAIN = [32768, 65536]
[limits]
row_fits_a_cluster = "cols * itemsize <= 262144 * VECS"
[default]
VECS = 4
SLICE = 512
PLAIN = 65536
*/
#include "opforge/softmax_rows.h"

namespace {

template <typename T>
struct LogSoftmax : opforge::SoftmaxRows {
  static constexpr int kInputs = 1;
  static constexpr bool kEmits = true;
  struct Finished {
    float top, log_sum;
  };
  T* y;
  int64_t y_stride;

  __device__ __forceinline__ Finished finish(int64_t, Stat stat) const { return {stat.top, opforge::Shift(stat.top).log_of(stat.sum, stat.top)}; }
  __device__ void leave(int64_t, Finished) const {}
  __device__ __forceinline__ T* out(int64_t r) const { return y + r * y_stride; }
  template <int N>
  __device__ __forceinline__ void compute(int, Finished row, float (&result)[N], const float (&x)[N]) const {
    // the difference first: it is exact where it matters, and top + log_sum would be rounded
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (x[j] - row.top) - row.log_sum;
  }
};

void log_softmax(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(y);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(y);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = opforge::as_rows<const T>(x);
    const auto out = opforge::as_rows<T>(y);
    LogSoftmax<T> op;
    op.y = out.data, op.y_stride = out.stride;
    opforge::launch_onchip_rows<T, LogSoftmax<T>, VECS, SLICE, PLAIN>(op, in, in, out, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, log_softmax)
