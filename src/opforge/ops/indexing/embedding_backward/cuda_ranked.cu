// Each index is told how many before it are the same: its place among the terms of its row. Then every row is added up in that order, without atomic additions of
// floats: the same bits each run.
//
// moves     dy once, dweight once; indices are compared with each other from shared memory
// limits    comparisons grow with the square of the indices: 65536 of them at the most. A row that very many indices name is one block's
/* opforge
[supports]
few_indices = "prod(lead) <= 65536"
[space]
THREADS = [64, 128, 256]
[default]
THREADS = 128
*/
#include "opforge/arch/packed.h"
#include "opforge/arch/scratch.h"
#include "opforge/indexing/checks.h"

namespace {

constexpr int kSide = 256, kScan = 1024;

struct Indices {
  const int64_t* data;
  int count;
  int64_t vocab, padding;

  /// An index, -1 where it names no row that gets anything.
  __device__ __forceinline__ int counted(int place) const {
    if (place >= count) return -1;
    const int64_t index = data[place];
    return index >= 0 && index < vocab && index != padding ? static_cast<int>(index) : -1;
  }
};

__global__ void __launch_bounds__(kScan) clear(int* counts, int vocab) {
  const int row = blockIdx.x * kScan + threadIdx.x;
  if (row < vocab) counts[row] = 0;
}

// How many indices before each are the same. counts[row] becomes the number of a row's terms: whole numbers, the same in any order.
__global__ void __launch_bounds__(kSide) rank_indices(Indices indices, int* ranks, int* counts) {
  __shared__ int others[kSide];
  const int place = blockIdx.x * kSide + threadIdx.x;
  const int mine = indices.counted(place);
  int rank = 0;
  for (int start = 0; start < place - static_cast<int>(threadIdx.x); start += kSide) {
    others[threadIdx.x] = indices.counted(start + threadIdx.x);
    __syncthreads();
#pragma unroll 8
    for (int j = 0; j < kSide; ++j) rank += others[j] == mine;
    __syncthreads();
  }
  others[threadIdx.x] = mine;
  __syncthreads();
  for (int j = 0; j < static_cast<int>(threadIdx.x); ++j) rank += others[j] == mine;
  if (mine < 0) return;
  ranks[place] = rank;
  atomicAdd(counts + mine, 1);
}

// ends[r]: where the terms of row r begin, and those of row r - 1 end; one block.
__global__ void __launch_bounds__(kScan) sum_counts(const int* counts, int* ends, int vocab) {
  __shared__ int of_warps[opforge::kWarpSize];
  const int lane = threadIdx.x % opforge::kWarpSize, warp = threadIdx.x / opforge::kWarpSize;
  int before = 0;
  for (int start = 0; start < vocab; start += kScan) {
    const int row = start + threadIdx.x, own = row < vocab ? counts[row] : 0;
    int sum = own;
    for (int step = 1; step < opforge::kWarpSize; step *= 2) {
      const int other = __shfl_up_sync(opforge::kFullMask, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == opforge::kWarpSize - 1) of_warps[warp] = sum;
    __syncthreads();
    int all = before, base = before;
    for (int w = 0; w < kScan / opforge::kWarpSize; ++w) {
      if (w < warp) base += of_warps[w];
      all += of_warps[w];
    }
    if (row < vocab) ends[row] = base + sum - own;
    before = all;
    __syncthreads();
  }
  if (threadIdx.x == 0) ends[vocab] = before;
}

__global__ void __launch_bounds__(kSide) place_terms(Indices indices, const int* ranks, const int* ends, int* terms) {
  const int place = blockIdx.x * kSide + threadIdx.x, mine = indices.counted(place);
  if (mine >= 0) terms[ends[mine] + ranks[place]] = place;
}

// A block takes a row of the table.
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) add_terms(const T* dy, const int* terms, const int* ends, T* dweight,
                                                     int64_t dim) {
  const int64_t row = blockIdx.x;
  const int first = ends[row], end = ends[row + 1];
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < dim; c += THREADS * N) {
    float sums[N] = {};
#pragma unroll 4
    for (int t = first; t < end; ++t) {
      float values[N];
      opforge::Packed<T, N>::load(dy + terms[t] * dim + c).unpack(values);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += values[j];
    }
    opforge::Packed<T, N>::pack(sums).store_once(dweight + row * dim + c);
  }
}

void embedding_backward(opforge::TensorView weight, opforge::TensorView indices, opforge::TensorView dy,
                        opforge::TensorView dweight, int64_t padding_idx) {
  opforge::check_embedding({"dweight", dweight}, {"indices", indices}, {"dy", dy});
  OPFORGE_CHECK_SAME_SHAPE(weight, dweight);
  OPFORGE_CHECK_CONTIGUOUS(dweight);
  opforge::check_device({"dy", dy});
  const int64_t vocab = dweight.size(0), dim = dweight.size(1), count = indices.numel();
  OPFORGE_CHECK(vocab < (int64_t(1) << 31) - kScan && count <= 65536, ValueError,
                "there are too many rows, or more than 65536 indices");
  if (vocab * dim == 0) return;
  const auto stream = opforge::current_stream(dy);
  const opforge::Scratch scratch((2 * vocab + 1 + 2 * count) * sizeof(int), stream);
  int* counts = static_cast<int*>(scratch.data());
  int *ends = counts + vocab, *ranks = ends + vocab + 1, *terms = ranks + count;
  OPFORGE_LAUNCH(clear, static_cast<unsigned>(opforge::ceil_div(vocab, kScan)), kScan, 0, stream, counts,
                 static_cast<int>(vocab));
  const Indices given{opforge::data<const int64_t>(indices), static_cast<int>(count), vocab, padding_idx};
  const unsigned blocks = static_cast<unsigned>(opforge::ceil_div(count, kSide));
  if (count > 0) OPFORGE_LAUNCH(rank_indices, blocks, kSide, 0, stream, given, ranks, counts);
  OPFORGE_LAUNCH(sum_counts, 1, kScan, 0, stream, static_cast<const int*>(counts), ends, static_cast<int>(vocab));
  if (count > 0)
    OPFORGE_LAUNCH(place_terms, blocks, kSide, 0, stream, given, static_cast<const int*>(ranks),
                   static_cast<const int*>(ends), terms);
  OPFORGE_DISPATCH_DTYPE(dy, T, {
    const auto add = [&](auto kernel) {
      OPFORGE_LAUNCH(kernel, static_cast<unsigned>(vocab), THREADS, 0, stream, opforge::data<const T>(dy),
                     static_cast<const int*>(terms), static_cast<const int*>(ends), opforge::data<T>(dweight), dim);
    };
    const bool vectors = opforge::can_vectorize(opforge::data<const T>(dy), dim) &&
                         opforge::can_vectorize(opforge::data<const T>(dweight), dim);
    add(vectors ? add_terms<T, opforge::kVecSize<T>> : add_terms<T, 1>);
  });
}

}  // namespace

OPFORGE_EXPORT(run, embedding_backward)
