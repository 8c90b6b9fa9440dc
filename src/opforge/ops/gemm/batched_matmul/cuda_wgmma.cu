// The roles of ../matmul/cuda_wgmma for a whole batch: the matrix is a third coordinate of the TMA's maps and of the tile scheduler.
//
// moves     a and b as ../matmul/cuda_wgmma, c once where beta is not 0, through the pipeline behind the terms of its tile, y once by TMA
//           under the products of the next tile. Scaling and adding afterwards would move 3 * batch * m * n more
// idea      one launch: blocks go on from the last tile of a matrix to the first of the next, so that no matrix ends with idle
//           multiprocessors. A box is cut off at the edges of its own matrix. A matrix that serves the whole batch is a batch of one
// code      the pipeline, the roles and the way out are in opforge/gemm/wgmma/launch.h
// limits    sm_90a; rows or columns, and matrices, that do not begin at multiples of 16 bytes are right too, and slow. A c that the TMA
//           cannot address by its rows is loaded by the threads that hold the sums
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
rows_of_whole_16_bytes = "n % 8 == 0 and k % 8 == 0"

[space]
BLOCK_N = [64, 128, 160, 192, 224, 256]
STAGES = [3, 4, 5, 6, 7]
CLUSTER_M = [1, 2]
CLUSTER_N = [1, 2]
GROUP = [1, 2, 4, 8, 16]
OUT_BOXES = [1, 2, 4]
LEAD = [0, 1, 2, 3]
NARROW = [0, 1, 2]
OVERLAP = [0, 1]

[default]
BLOCK_N = 256
STAGES = 4
CLUSTER_M = 2
CLUSTER_N = 1
GROUP = 8
OUT_BOXES = 2
LEAD = 2
NARROW = 1
OVERLAP = 1

[limits]
lead_fits_the_pipeline = "LEAD < STAGES"
stages_fit_shared_memory = "STAGES * (128 + (BLOCK_N + 63) // 64 * 64) * 128 + 16384 * OUT_BOXES + 2048 <= shared_bytes_per_block"
*/
#include "opforge/gemm/wgmma/tunables.h"

namespace {

namespace wgmma = opforge::wgmma;

// alpha * sum, to which beta * c is added as it comes through the pipeline.
struct Weighted {
  static constexpr bool kReads = false;
  float alpha, beta;

  __device__ __forceinline__ void begin(int) {}
  __device__ __forceinline__ float weight() const { return beta; }

  template <int count>
  __device__ __forceinline__ void apply(float (&sums)[count], int, int, int) const {
#pragma unroll
    for (float& sum : sums) sum *= alpha;
  }
};

// alpha * sum + beta * c; beta = 0 forgets c, NaN included.
template <typename T>
struct Scaled {
  static constexpr bool kReads = true;
  float alpha, beta;
  const T* c;
  int64_t batch, row, col;
  int m, n;
  bool pairs;  // whether two neighbours may be loaded at once

  __device__ __forceinline__ void begin(int matrix) { c += matrix * batch; }
  Weighted before_adding() const { return {alpha, beta}; }

  template <int count>
  __device__ __forceinline__ void apply(float (&sums)[count], int row0, int col0, int thread) const {
#pragma unroll
    for (float& sum : sums) sum *= alpha;
    if (beta == 0.0f) return;
    // what lies beyond an edge is thrown away: there is nothing to load for it
    const int first = row0 + thread / 32 * 16 + thread % 32 / 4, left = col0 + thread % 4 * 2;
    const T* from = c + first * row + left * col;
    opforge::Vec<T, 2> added[count / 2];
    const auto load_all = [&](const auto& load) {
#pragma unroll
      for (int i = 0; i < count / 2; ++i) {
        const int down = i % 2 * 8, right = i / 2 * 8;
        added[i][0] = added[i][1] = opforge::store_from_float<T>(0.0f);
        if (first + down < m) load(added[i], from + down * row + right * col, n - left - right);
      }
    };
    // all loads of 64 columns before the first sum that waits for one
    if (pairs) {
      load_all([&](opforge::Vec<T, 2>& two, const T* p, int room) {
        if (room > 0) two = opforge::Vec<T, 2>::load(p);
      });
    } else {
      load_all([&](opforge::Vec<T, 2>& two, const T* p, int room) {
        if (room > 0) two[0] = p[0];
        if (room > 1) two[1] = p[col];
      });
    }
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] = fmaf(beta, opforge::load_as_float(added[i / 2][i % 2]), sums[i]);
  }
};

template <typename T>
void product_of(const opforge::Matrix& a, const opforge::Matrix& b, const opforge::Matrix& c, const opforge::Matrix& y, cudaStream_t stream, float alpha, float beta) {
  const int64_t apart = c.batch == 1 ? 0 : c.batch_stride;
  const bool pairs = c.col == 1 && (c.row | apart | c.cols) % 2 == 0 && reinterpret_cast<uintptr_t>(c.data) % (2 * sizeof(T)) == 0;
  const Scaled<T> epilogue{alpha, beta, c.typed<const T>(), apart, c.row, c.col, static_cast<int>(y.rows), static_cast<int>(y.cols), pairs};
  using Wide = wgmma::Wide<T, true>;
  using Narrow = wgmma::Narrow<T, true>;
  const wgmma::Lines lines = wgmma::lines_of(c, sizeof(T));
  if (beta != 0.0f && lines.addressable && !lines.transposed) {
    wgmma::launch_product<Wide, Narrow, T>(a, b, y, stream, epilogue, wgmma::NoPromotion{}, c);
  } else {
    wgmma::launch_product<Wide, Narrow, T>(a, b, y, stream, epilogue, wgmma::NoPromotion{});
  }
}

void batched_matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, opforge::TensorView y, double alpha, double beta, int64_t /*precision*/) {
  const opforge::Matrix left = OPFORGE_DEVICE_MATRICES(a), right = OPFORGE_DEVICE_MATRICES(b), added = OPFORGE_DEVICE_MATRICES(c), out = OPFORGE_DEVICE_MATRICES(y);
  opforge::check_product(left, right, out);
  opforge::check_product(left, right, added);
  opforge::check_same_dtype(left, out);
  opforge::check_same_dtype(left, added);
  if (out.numel() > 0)
    OPFORGE_DISPATCH_16_BITS(left, T, product_of<T>(left, right, added, out, opforge::current_stream(a), static_cast<float>(alpha), static_cast<float>(beta)));
}

}  // namespace

OPFORGE_EXPORT(run, batched_matmul)
