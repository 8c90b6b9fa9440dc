// A cluster of blocks shares a row and waits for nothing: bulk copies run ahead in shared memory, a row's maximum and sum travel while the next row is gathered from.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; one exp an element; see opforge/rows/wide.h
// limits    262144 columns, in whole 16-byte vectors; where x or y begin off that grid elements are copied one by one. sm_90 or later
/* opforge
like = "opforge/rows/wide.h"
*/
#include "opforge/rows/softmax.h"
#include "opforge/rows/wide.h"

namespace {

struct LogSoftmax : opforge::SoftmaxRows {
  static constexpr int kConstants = 0;
  struct Finished {
    float top, log_sum;
  };

  __device__ __forceinline__ Finished finish(Stat stat) const { return {stat.top, opforge::Shift(stat.top).log_of(stat.sum, stat.top)}; }
  template <int N>
  __device__ __forceinline__ void compute(Finished row, float (&result)[N], const float (&x)[N], const float (&)[1][N]) const {
    // the difference first: it is exact where it matters, and top + log_sum would be rounded
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (x[j] - row.top) - row.log_sum;
  }
};

void log_softmax(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  const LogSoftmax op;
  OPFORGE_DISPATCH_DTYPE(x, T, {
    opforge::launch_wide_rows<T, THREADS, VECS, RESIDENT, DELAY, STAY>(op, opforge::as_rows<const T>(x), opforge::as_rows<T>(y), true, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, log_softmax)
