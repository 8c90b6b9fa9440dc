// The row waits in the registers of a warp, a block or a cluster of blocks.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; exp is computed twice; see opforge/rows/onchip.h
// limits    262144 columns: the registers of a cluster of 16 blocks. Past a block's registers (32768 columns of 16 bits,
//           16384 of 32) it needs clusters: sm_90 or later
/* opforge
like = "opforge/rows/onchip.h"
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/softmax.h"

namespace {

template <typename T>
struct Softmax : opforge::SoftmaxRows, opforge::EmitsRow<T> {
  static constexpr int kInputs = 1;
  struct Finished {
    float top, scale;
  };

  __device__ __forceinline__ Finished finish(int64_t, Stat stat) const { return {stat.top, opforge::reciprocal_approximate(stat.sum)}; }
  template <int N>
  __device__ __forceinline__ void compute(int, Finished row, float (&result)[N], const float (&x)[N]) const {
    const opforge::Shift shift(row.top);
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = shift.exp(x[j]) * row.scale;
  }
};

void softmax(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = opforge::as_rows<const T>(x);
    const auto out = opforge::as_rows<T>(y);
    Softmax<T> op;
    op.into(out);
    opforge::launch_onchip_rows<T, Softmax<T>, VECS, SLICE, PLAIN>(op, in, in, out, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, softmax)
