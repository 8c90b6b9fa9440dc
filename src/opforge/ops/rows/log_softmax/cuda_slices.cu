// A cluster of small blocks for each row: slices wait in registers or in shared memory; statistics are sent, not fetched.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; one exp an element; see opforge/rows/slices.h
// limits    262144 columns, in whole 16-byte vectors; where x or y begin off that grid elements are read and written one by one. sm_90 or later
/* opforge
like = "opforge/rows/slices.h"
*/
#include "opforge/rows/slices.h"
#include "opforge/rows/softmax.h"

namespace {

struct LogSoftmax : opforge::SoftmaxRows {
  static constexpr int kConstants = 0;
  static constexpr bool kKeeps = false;
  struct Finished {
    float top, log_sum;
  };

  __device__ static __forceinline__ float worth(const Stat& part, const opforge::Shift& shift) { return opforge::exp2_approximate(__fmul_rn(part.top, shift.slope) - shift.offset); }
  __device__ static __forceinline__ Stat merge_two(const Stat& a, const Stat& b) {
    const opforge::Shift shift(fmaxf(a.top, b.top));
    return {fmaxf(a.top, b.top), a.sum * worth(a, shift) + b.sum * worth(b, shift)};
  }
  template <bool kKept>
  __device__ __forceinline__ Finished finish(const Stat& all, const Stat&) const { return {all.top, opforge::Shift(all.top).log_of(all.sum, all.top)}; }
  template <bool kKept, int N>
  __device__ __forceinline__ void compute(const Finished& row, float (&result)[N], const float (&x)[N], const float (&)[1][N]) const {
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
    opforge::launch_slice_rows<T, THREADS, VECS, RESIDENT, HELD != 0, SPREAD>(op, opforge::as_rows<const T>(x), opforge::as_rows<T>(y), true, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, log_softmax)
