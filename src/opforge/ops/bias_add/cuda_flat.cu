// All elements in one row of 16-byte vectors; the column is found by one division and then by additions: bias_add(x, bias, y).
#include "opforge/elementwise_device.h"

/* opforge
default = { THREADS = 256, UNROLL = 4 }
[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4, 8]
[limits]
one_block_does_not_outgrow_small_calls = "THREADS * UNROLL <= 2048"
*/

namespace {

using opforge::Vec;

template <typename T>
__device__ __forceinline__ T sum(T x, T bias) {
  return opforge::store_from_float<T>(opforge::load_as_float(x) + opforge::load_as_float(bias));
}

// Index is uint32_t where every element index fits it: a 64-bit division costs as much as the rest of the kernel.
// kBiasVectors: rows and bias begin on 16-byte addresses, so that no vector leaves its row.
// step and jump: how far the column moves from one vector of a thread to the next, and from one tile to its next.
// The first `head` elements, up to the first aligned address, and the last few go one by one.
template <typename T, typename Index, int N, bool kBiasVectors>
__global__ void __launch_bounds__(THREADS)
    bias_add_vectors(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, Index head, Index n, Index cols,
                     Index step, Index jump) {
  const Index vectors = (n - head) / N;
  constexpr Index kTile = Index(THREADS) * UNROLL;
  Index start = (head + (Index(blockIdx.x) * kTile + threadIdx.x) * N) % cols;
  for (Index tile = Index(blockIdx.x) * kTile; tile < vectors; tile += Index(gridDim.x) * kTile) {
    Vec<T, N> v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const Index i = tile + u * THREADS + threadIdx.x;
      if (i < vectors) v[u] = Vec<T, N>::load(x + head + i * N);
    }
    Index col = start;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const Index i = tile + u * THREADS + threadIdx.x;
      if (i >= vectors) break;
      if constexpr (kBiasVectors) {
        const auto b = Vec<T, N>::load(bias + col);
#pragma unroll
        for (int j = 0; j < N; ++j) v[u][j] = sum(v[u][j], b[j]);
      } else {
        Index c = col;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          v[u][j] = sum(v[u][j], bias[c]);
          if (++c == cols) c = 0;
        }
      }
      v[u].store(y + head + i * N);
      col += step;
      if (col >= cols) col -= cols;
    }
    start += jump;
    if (start >= cols) start -= cols;
  }
  const Index rest = n - vectors * N;
  if (blockIdx.x == 0 && threadIdx.x < rest) {
    const Index i = threadIdx.x < head ? Index(threadIdx.x) : vectors * N + threadIdx.x;
    y[i] = sum(x[i], bias[i % cols]);
  }
}

template <typename T, typename Index>
void add_flat(const T* x, const T* bias, T* y, int64_t n, int64_t cols, cudaStream_t stream) {
  constexpr int N = opforge::kVecSize<T>;
  const int64_t to_alignment = opforge::elements_to_alignment(y);
  const Index head = static_cast<Index>(to_alignment < n ? to_alignment : n), size = static_cast<Index>(n), width = static_cast<Index>(cols);
  const bool alike = opforge::elements_to_alignment(x) == to_alignment;
  const auto launch = [&](auto kernel, int64_t per_vector, Index skipped) {
    const unsigned blocks = opforge::grid_for(opforge::ceil_div((n - int64_t(skipped)) / per_vector, int64_t(THREADS) * UNROLL));
    const Index step = static_cast<Index>(THREADS * per_vector % cols);
    const Index jump = static_cast<Index>(int64_t(blocks) * THREADS * UNROLL % cols * per_vector % cols);
    OPFORGE_LAUNCH(kernel, blocks, THREADS, 0, stream, x, bias, y, skipped, size, width, step, jump);
  };
  if (alike && head == 0 && opforge::can_vectorize(bias, cols)) {
    launch(bias_add_vectors<T, Index, N, true>, N, head);
  } else if (alike) {
    launch(bias_add_vectors<T, Index, N, false>, N, head);
  } else {
    launch(bias_add_vectors<T, Index, 1, false>, 1, Index(0));
  }
}

void bias_add(opforge::TensorView x, opforge::TensorView bias, opforge::TensorView y) {
  OPFORGE_CHECK_NDIM(x, 2);
  OPFORGE_CHECK_NDIM(bias, 1);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK(bias.size(0) == x.size(1), ValueError, "bias must have ", x.size(1), " elements (got ", bias.size(0), ")");
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(bias);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(bias);
  OPFORGE_CHECK_DEVICE(y);
  if (x.numel() == 0) return;
  const int64_t n = x.numel(), cols = x.size(1);
  const auto stream = opforge::current_stream(x);
  // half of what a uint32_t holds: indices reach past the end before they are compared with it
  const bool small = n < (int64_t(1) << 31);
  OPFORGE_DISPATCH_DTYPE(
      x, T, {
        if (small)
          add_flat<T, uint32_t>(opforge::data<const T>(x), opforge::data<const T>(bias), opforge::data<T>(y), n, cols, stream);
        else
          add_flat<T, int64_t>(opforge::data<const T>(x), opforge::data<const T>(bias), opforge::data<T>(y), n, cols, stream);
      });
}

}  // namespace

OPFORGE_EXPORT(run, bias_add)
