// A cluster of small blocks for each row: slices wait in registers or in shared memory; statistics are sent, not fetched, and the weight is asked for with the row.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; the weight comes from the L2 cache for every row; see opforge/rows/slices.h
// limits    262144 columns, in whole 16-byte vectors; where a row or the weight begins off that grid elements are read and written one by one. sm_90 or later
/* opforge
like = "opforge/rows/slices.h"
*/
#include "opforge/rows/slices.h"

namespace {

template <typename T>
struct RmsNorm {
  static constexpr int kConstants = 1;
  static constexpr bool kKeeps = false;
  using Stat = float;
  using Finished = float;
  const T* weight;
  float eps, per_column;

  __device__ const T* constant(int) const { return weight; }
  __device__ static __forceinline__ Stat empty() { return 0.0f; }
  template <class Row>
  __device__ static __forceinline__ Stat gather(const Row& row) {
    float sum = 0.0f;
    row.visit([&](int, const auto& x) {
      for (float v : x) sum += v * v;
    });
    return opforge::warp_reduce_sum(sum);
  }
  __device__ static __forceinline__ Stat merge_lanes(Stat part) { return opforge::warp_reduce_sum(part); }
  __device__ static __forceinline__ Stat merge_two(Stat a, Stat b) { return a + b; }
  template <bool kKept>
  __device__ __forceinline__ Finished finish(Stat all, Stat) const { return rsqrtf(all * per_column + eps); }
  template <bool kKept, int N>
  __device__ __forceinline__ void compute(Finished of, float (&result)[N], const float (&x)[N], const float (&constants)[2][N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = x[j] * of * constants[0][j];
  }
};

void rmsnorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView y, double eps) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  opforge::check_columns({{"weight", weight}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    RmsNorm<T> op;
    op.weight = opforge::data<T>(weight);
    op.eps = static_cast<float>(eps), op.per_column = 1.0f / static_cast<float>(x.size(1));
    const bool on_grid = opforge::can_vectorize(op.weight, x.size(1));
    opforge::launch_slice_rows<T, THREADS, VECS, RESIDENT, HELD != 0, SPREAD>(op, opforge::as_rows<const T>(x), opforge::as_rows<T>(y), on_grid, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, rmsnorm)
