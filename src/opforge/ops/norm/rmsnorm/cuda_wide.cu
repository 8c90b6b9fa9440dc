// A cluster of blocks shares a row and waits for nothing: bulk copies run ahead in shared memory, a row's sum travels while the next row is gathered from.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; the weight once for each block, into registers; see opforge/rows/wide.h
// limits    262144 columns, in whole 16-byte vectors; where x or y begin off that grid elements are copied one by one. sm_90 or later
/* opforge
like = "opforge/rows/wide.h"
[limits]
rows_fit_the_ring = "16 * THREADS * VECS * (DELAY + 1) <= shared_bytes_per_unit // RESIDENT - 4096"
registers_suffice = "(THREADS + 64) * RESIDENT <= 1536"
constants_fit_the_registers = "THREADS * VECS * RESIDENT <= 4096"
a_single_row_has_no_next = "STAY != 0 or DELAY == 0"
[default]
THREADS = 512
VECS = 4
RESIDENT = 1
DELAY = 1
STAY = 2
*/
#include "opforge/norm/wide.h"

namespace {

template <typename T>
struct RmsNorm : opforge::WideMoments<false> {
  static constexpr int kConstants = 1;
  using Finished = float;
  const T* weight;
  float eps, per_column;

  __device__ const T* constant(int) const { return weight; }
  __device__ __forceinline__ Finished finish(const Stat& of) const { return rsqrtf(of.squares * per_column + eps); }
  template <int N>
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
    opforge::launch_wide_rows<T, THREADS, VECS, RESIDENT, DELAY, STAY>(op, opforge::as_rows<const T>(x), opforge::as_rows<T>(y), on_grid, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, rmsnorm)
