// A cluster of small blocks for each row: slices wait in registers, as exponentials that are computed once, or in shared memory; statistics are sent, not fetched.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; one exp an element, two where rows wait in shared memory; see opforge/rows/slices.h
// limits    262144 columns, in whole 16-byte vectors; where x or y begin off that grid elements are read and written one by one. sm_90 or later
/* opforge
like = "opforge/rows/slices.h"
*/
#include "opforge/rows/slices.h"
#include "opforge/rows/softmax.h"

namespace {

struct Softmax : opforge::SoftmaxRows {
  static constexpr int kConstants = 0;
  static constexpr bool kKeeps = true;
  struct Finished {
    opforge::Shift shift;
    float scale;
  };

  template <typename T, int N, int kThreads, int kVecs>
  __device__ static __forceinline__ Stat gather(const opforge::SliceRow<T, N, kThreads, kVecs, false, false>& row) { return SoftmaxRows::gather(row); }
  template <typename T, int N, int kThreads, int kVecs>
  __device__ static __forceinline__ Stat gather(opforge::SliceRow<T, N, kThreads, kVecs, true, true>& row) {
    float top = opforge::Max::identity;
    row.visit([&](int, const auto& x) {
      for (float v : x) top = fmaxf(top, v);
    });
    top = opforge::warp_reduce_max(top);
    const opforge::Shift shift(top);
    float sum = 0.0f;
    row.change([&](int, auto& x) {
      for (float& v : x) sum += v = shift.exp(v);
    });
    return {top, opforge::warp_reduce_sum(sum)};
  }
  /// What is known of a part, beside the shift of the whole: the difference of the two shifts, each as it was used.
  __device__ static __forceinline__ float worth(const Stat& part, const opforge::Shift& shift) { return opforge::exp2_approximate(__fmul_rn(part.top, shift.slope) - shift.offset); }
  __device__ static __forceinline__ Stat merge_two(const Stat& a, const Stat& b) {
    const opforge::Shift shift(fmaxf(a.top, b.top));
    return {fmaxf(a.top, b.top), a.sum * worth(a, shift) + b.sum * worth(b, shift)};
  }
  template <bool kKept>
  __device__ __forceinline__ Finished finish(const Stat& all, const Stat& own) const {
    const opforge::Shift shift(all.top);
    const float scale = opforge::reciprocal_approximate(all.sum);
    return {shift, kKept ? scale * worth(own, shift) : scale};
  }
  template <bool kKept, int N>
  __device__ __forceinline__ void compute(const Finished& row, float (&result)[N], const float (&x)[N], const float (&)[1][N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (kKept ? x[j] : row.shift.exp(x[j])) * row.scale;
  }
};

void softmax(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  const Softmax op;
  OPFORGE_DISPATCH_DTYPE(x, T, {
    opforge::launch_slice_rows<T, THREADS, VECS, RESIDENT, HELD != 0, SPREAD>(op, opforge::as_rows<const T>(x), opforge::as_rows<T>(y), true, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, softmax)
