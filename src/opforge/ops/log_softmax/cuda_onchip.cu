// The row waits in the registers of a warp, a block or a cluster of blocks. Clusters stay, and copies run ahead of them.
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
STAGES = [0, 1, 2, 3, 4]
PLAIN = [32768, 65536]
[limits]
row_fits_a_cluster = "cols * itemsize <= 262144 * VECS"
[default]
VECS = 4
SLICE = 512
STAGES = 3
PLAIN = 32768
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
  template <int N>
  __device__ __forceinline__ void emit(int64_t r, int c, Finished row, const float (&x)[N]) const {
    float result[N];
    // the difference first: it is exact where it matters, and top + log_sum would be rounded
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (x[j] - row.top) - row.log_sum;
    opforge::Packed<T, N>::pack(result).store_once(y + r * y_stride + c);
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
    opforge::launch_onchip_rows<T, LogSoftmax<T>, VECS, SLICE, STAGES, PLAIN>(op, in, in, opforge::rows_vectorize(out), opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, log_softmax)
