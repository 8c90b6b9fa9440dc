// A cluster of blocks shares a row and waits for nothing: bulk copies run ahead in shared memory, a row's moments travel while the next row is gathered from.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; weight and bias once for each block, into registers; see opforge/rows/wide.h
// limits    262144 columns, in whole 16-byte vectors; where x or y begin off that grid elements are copied one by one. sm_90 or later
/* opforge
like = "opforge/rows/wide.h"
[limits]
rows_fit_the_ring = "16 * THREADS * VECS * (DELAY + 1) <= shared_bytes_per_unit // RESIDENT - 4096"
registers_suffice = "(THREADS + 64) * RESIDENT <= 1536"
constants_fit_the_registers = "THREADS * VECS * RESIDENT <= 2048"
a_single_row_has_no_next = "STAY != 0 or DELAY == 0"
[default]
THREADS = 512
VECS = 4
RESIDENT = 1
DELAY = 2
STAY = 1
*/
#include "opforge/norm/wide.h"

namespace {

template <typename T>
struct LayerNorm : opforge::WideMoments<true> {
  static constexpr int kConstants = 2;
  using Finished = opforge::Normaliser;
  const T* weight;
  const T* bias;
  float eps, per_column;

  __device__ const T* constant(int k) const { return k == 0 ? weight : bias; }
  __device__ __forceinline__ Finished finish(const Stat& of) const { return {of.mean, rsqrtf(of.squares * per_column + eps)}; }
  template <int N>
  __device__ __forceinline__ void compute(Finished of, float (&result)[N], const float (&x)[N], const float (&constants)[3][N]) const {
    const float shift = -of.mean * of.scale;
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = (x[j] * of.scale + shift) * constants[0][j] + constants[1][j];
  }
};

void layernorm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y, double eps) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  opforge::check_columns({{"weight", weight}, {"bias", bias}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    LayerNorm<T> op;
    op.weight = opforge::data<T>(weight), op.bias = opforge::data<T>(bias);
    op.eps = static_cast<float>(eps), op.per_column = 1.0f / static_cast<float>(x.size(1));
    const bool on_grid = opforge::can_vectorize(op.weight, x.size(1)) && opforge::can_vectorize(op.bias, x.size(1));
    opforge::launch_wide_rows<T, THREADS, VECS, RESIDENT, DELAY, STAY>(op, opforge::as_rows<const T>(x), opforge::as_rows<T>(y), on_grid, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, layernorm)
