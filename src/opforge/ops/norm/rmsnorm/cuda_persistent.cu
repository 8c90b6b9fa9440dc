// Short rows in the registers of a warp or a block; past 64 KiB clusters that stay, with the weight in shared memory and the next
// row on its way while this one is normalised.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; the weight from cache, or once for each group that stays; see opforge/norm/rows.h
// limits    262144 columns: the registers of a cluster of 16 blocks. Past a block's registers (32768 columns of 16 bits, 16384
//           of 32) it needs clusters: sm_90 or later
/* opforge
like = "opforge/norm/rows.h"
*/
#include "opforge/norm/rows.h"

namespace {

template <typename T>
struct RmsNorm {
  static constexpr int kInputs = 1, kConstants = 1;
  static constexpr bool kEmits = true, kCentred = false, kStays = true;
  static constexpr int kBlocks = 0;
  // a row of 1 MiB takes a whole cluster of 16: clusters that come and go were faster there
  static constexpr int64_t kStaysFrom = 65536, kStaysTo = 524288;
  static constexpr int kSlice = 1024;
  T* y;
  int64_t y_stride;
  const T* weight;
  float eps, per_column;

  __device__ const T* constant(int) const { return weight; }
  template <class Row>
  __device__ __forceinline__ opforge::Moments gather(const Row& row) const { return opforge::moments_of_warp<false>(row); }
  __device__ __forceinline__ float finish(const opforge::Moments& of) const { return rsqrtf(of.squares * per_column + eps); }
  __device__ void leave(int64_t, float) const {}
  template <int N, int K>
  __device__ __forceinline__ void emit(int64_t r, int c, float scale, const float (&constants)[K][N], const float (&x)[N]) const {
    float result[N];
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = x[j] * scale * constants[0][j];
    opforge::Packed<T, N>::pack(result).store_once(y + r * y_stride + c);
  }
};

void rmsnorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView y, double eps) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  opforge::check_columns({{"weight", weight}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = opforge::as_rows<const T>(x);
    const auto out = opforge::as_rows<T>(y);
    const RmsNorm<T> op{out.data, out.stride, opforge::data<T>(weight), static_cast<float>(eps), 1.0f / static_cast<float>(out.cols)};
    const bool vectors = opforge::rows_vectorize(out) && opforge::can_vectorize(op.weight, out.cols);
    opforge::launch_norm_rows<T>(op, in, in, vectors, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, rmsnorm)
