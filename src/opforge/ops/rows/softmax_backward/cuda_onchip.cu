// Both rows wait in the registers of a warp, a block or a cluster of blocks.
//
// moves     3 * rows * cols * itemsize bytes: the least possible; see opforge/rows/onchip.h
// limits    262144 columns of 16 bits, 131072 of 32: the registers of a cluster of 16 blocks. Past a block's registers it needs
//           clusters: sm_90 or later
/* opforge
like = "opforge/rows/onchip.h"
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/onchip.h"

namespace {

template <typename T>
struct Gradient : opforge::SumOverPairs<T> {
  template <class Row>
  __device__ static __forceinline__ float gather(const Row& row) {
    return opforge::SumOverPairs<T>::sum_of(row, [](float y, float dy) { return y * dy; });
  }
  template <int N>
  __device__ __forceinline__ void compute(int, float sum, float (&result)[N], const float (&y)[N], const float (&dy)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = y[j] * (dy[j] - sum);
  }
};

void softmax_backward(opforge::TensorView y, opforge::TensorView dy, opforge::TensorView dx) {
  opforge::check_same_rows({{"y", y}, {"dy", dy}, {"dx", dx}});
  OPFORGE_CHECK_DEVICE(y);
  OPFORGE_DISPATCH_DTYPE(y, T, {
    const auto out = opforge::as_rows<T>(dx);
    Gradient<T> op;
    op.into(out);
    opforge::launch_onchip_rows<T, Gradient<T>, VECS, SLICE, PLAIN>(
        op, opforge::as_rows<const T>(y), opforge::as_rows<const T>(dy), out, opforge::current_stream(y));
  });
}

}  // namespace

OPFORGE_EXPORT(run, softmax_backward)
