// opforge/norm/backward.h - gradients of layer and RMS normalisation on the GPU: x and dy are read once, dx is written once.
//
// With h = (x - mean) / std and g = weight * dy,
//
//   dx = (g - mean(g) - h * mean(g * h)) / std      dweight = sum over rows of dy * h      dbias = sum over rows of dy
//
// (RMS: mean = 0, and the term mean(g) is absent). A row waits in registers as in opforge/norm/rows.h. Its four sums take one
// exchange: each warp takes them about its own mean, and merging corrects for the difference. Groups are persistent and add
// dweight and dbias up for all of their rows: in registers where a warp has a row, else in shared memory, each thread its own
// columns. One row of partial sums a group goes to scratch memory and is added up by a second kernel, always in the same order.
#ifndef OPFORGE_NORM_BACKWARD_H_
#define OPFORGE_NORM_BACKWARD_H_

#include "opforge/norm/rows.h"
#include "opforge/arch/scratch.h"

namespace opforge {

constexpr int kWidestGradient = 262144;  // columns: what the operators' files say they support

/// The tensors of a call; bias is absent (dbias null) in RMS normalisation.
template <typename T>
struct NormGradient {
  Rows<const T> x, dy;
  const T* weight;
  Rows<T> dx;
  T* dweight;
  T* dbias;
  float eps, per_column;  // per_column: 1 / columns
};

/// What a part of a row knows: its moments, the sum of g, and the sum of g * (x - mean).
struct GradientMoments {
  Moments of_x;
  float g, product;
};

template <bool kCentred>
__device__ __forceinline__ GradientMoments merge_gradient_lanes(GradientMoments part) {
  GradientMoments all;
  all.of_x = merge_moments<kCentred>(part.of_x);
  if constexpr (kCentred) {
    all.g = warp_reduce_sum(part.g);
    part.product += (part.of_x.mean - all.of_x.mean) * part.g;
  } else {
    all.g = 0.0f;
  }
  all.product = warp_reduce_sum(part.product);
  return all;
}

struct GradientExchange {
  GradientMoments warps[2][kWarpSize];
  GradientMoments blocks[2][kNormMaxCluster];
};

template <bool kCentred>
__device__ __forceinline__ GradientMoments merge_gradient_group(GradientMoments part, GradientExchange& exchange, int turn, int blocks, int block) {
  const int lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
  const GradientMoments none{{0.0f, 0.0f, 0.0f}, 0.0f, 0.0f};
  if (warps > 1) {
    if (lane == 0) exchange.warps[turn][threadIdx.x / kWarpSize] = part;
    __syncthreads();
    part = merge_gradient_lanes<kCentred>(lane < warps ? exchange.warps[turn][lane] : none);
  }
  if (blocks > 1) {
    if (static_cast<int>(threadIdx.x) < blocks) store_in_block(&exchange.blocks[turn][block], threadIdx.x, part);
    cluster_barrier();
    part = merge_gradient_lanes<kCentred>(lane < blocks ? exchange.blocks[turn][lane] : none);
  }
  return part;
}

// Sums over rows of one thread's columns: registers, or (kShared) shared memory, each thread its own words there.
template <int N, int kVecs, bool kShared>
class ColumnSums {
 public:
  __device__ __forceinline__ ColumnSums(float* shared, int threads, int rank) : shared_(shared + rank * kStep), threads_(threads) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const float zeros[N] = {};
      put(i, zeros);
    }
  }
  __device__ __forceinline__ void get(int i, float (&values)[N]) const {
    if constexpr (kShared) {
#pragma unroll
      for (int q = 0; q < N / kStep; ++q) {
        const auto part = Vec<float, kStep>::load(shared_ + (i * (N / kStep) + q) * threads_ * kStep);
#pragma unroll
        for (int j = 0; j < kStep; ++j) values[q * kStep + j] = part[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) values[j] = sums_[i][j];
    }
  }
  __device__ __forceinline__ void put(int i, const float (&values)[N]) {
    if constexpr (kShared) {
#pragma unroll
      for (int q = 0; q < N / kStep; ++q) {
        Vec<float, kStep> part;
#pragma unroll
        for (int j = 0; j < kStep; ++j) part[j] = values[q * kStep + j];
        part.store(shared_ + (i * (N / kStep) + q) * threads_ * kStep);
      }
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) sums_[i][j] = values[j];
    }
  }

 private:
  static constexpr int kStep = N == 1 ? 1 : 4;
  float sums_[kShared ? 1 : kVecs][kShared ? 1 : N];
  float* shared_;
  int threads_;
};

// kAhead: the next row is on its way while this one is worked on. Blocks of kNormMaxThreads are for single elements, which have a register each:
// there are too few for a row, and a thread reads x and dy again where it needs them, from L2.
template <typename T, int N, int kVecs, bool kWarp, bool kCentred, bool kAhead, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads == kNormMaxThreads ? 1 : 0) norm_gradient_rows(NormGradient<T> call, float* partial) {
  OPFORGE_DYNAMIC_SHARED(float, shared);
  __shared__ GradientExchange exchange;
  constexpr bool kHeld = kThreads < kNormMaxThreads;
  constexpr int kUnrolled = kHeld ? kVecs : 4;
  const int threads = kWarp ? kWarpSize : blockDim.x, rank = kWarp ? threadIdx.x % kWarpSize : threadIdx.x;
  const int blocks = kWarp ? 1 : cluster_blocks(), block = kWarp ? 0 : cluster_block();
  const int warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  const int64_t groups = kWarp ? int64_t(gridDim.x) * warps : gridDim.x / blocks;
  const int64_t group = kWarp ? int64_t(blockIdx.x) * warps + warp : blockIdx.x / blocks;
  const int step = threads * N, first = (block * kVecs * threads + rank) * N;
  const int cols = static_cast<int>(call.x.cols), left = cols - first;

  const int slice = kVecs * threads * N;
  ColumnSums<N, kVecs, !kWarp> weight_sums(shared, threads, rank);
  ColumnSums<N, kVecs, !kWarp> bias_sums(shared + (kCentred ? slice : 0), threads, rank);
  Packed<T, N>* staged = reinterpret_cast<Packed<T, N>*>(shared + (kCentred ? 2 : 1) * slice);
  if constexpr (!kWarp) {
#pragma unroll kUnrolled
    for (int i = 0; i < kVecs; ++i) {
      if (i * step < left) staged[i * threads + rank] = Packed<T, N>::load(call.weight + first + i * step);
    }
  }
  float count = 0.0f;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int rest = cols - (first - rank % kWarpSize * N + i * step);
    count += static_cast<float>(max(0, min(rest, kWarpSize * N)));
  }
  const float share = count > 0.0f ? 1.0f / count : 0.0f;
  if (blocks > 1) cluster_barrier();  // before anything is written to a block it must have begun

  Packed<T, N> x[kVecs], dy[kVecs], next_x[kVecs], next_dy[kVecs];
  const auto fetch = [&](int64_t r, Packed<T, N>(&to_x)[kVecs], Packed<T, N>(&to_dy)[kVecs]) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * step < left) {
        to_x[i] = Packed<T, N>::load_once(call.x.data + r * call.x.stride + first + i * step);
        to_dy[i] = Packed<T, N>::load_once(call.dy.data + r * call.dy.stride + first + i * step);
      }
    }
  };
  if (kAhead && group < call.x.rows) fetch(group, next_x, next_dy);
  int turn = 0;
  for (int64_t r = group; r < call.x.rows; r += groups, turn ^= 1) {
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        x[i] = next_x[i];
        dy[i] = next_dy[i];
      }
      if (r + groups < call.x.rows) fetch(r + groups, next_x, next_dy);
    } else if constexpr (kHeld) {
      fetch(r, x, dy);
    }
    const auto vector = [&](const Packed<T, N>(&held)[kVecs], const Rows<const T>& from, int i) {
      if constexpr (kHeld) {
        return held[i];
      } else {
        return Packed<T, N>::load(from.data + r * from.stride + first + i * step);
      }
    };
    const auto weight_of = [&](int i, float(&values)[N]) {
      if constexpr (kWarp) {
        Packed<T, N>::load(call.weight + first + i * step).unpack(values);
      } else {
        staged[i * threads + rank].unpack(values);
      }
    };

    GradientMoments part{{count, 0.0f, 0.0f}, 0.0f, 0.0f};
    if constexpr (kCentred) {
      float sum = 0.0f;
#pragma unroll kUnrolled
      for (int i = 0; i < kVecs; ++i) {
        if (i * step < left) {
          float values[N];
          vector(x, call.x, i).unpack(values);
#pragma unroll
          for (float v : values) sum += v;
        }
      }
      part.of_x.mean = warp_reduce_sum(sum) * share;
    }
#pragma unroll kUnrolled
    for (int i = 0; i < kVecs; ++i) {
      if (i * step < left) {
        float values[N], gradients[N], weights[N];
        vector(x, call.x, i).unpack(values);
        vector(dy, call.dy, i).unpack(gradients);
        weight_of(i, weights);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float off = values[j] - part.of_x.mean, g = gradients[j] * weights[j];
          part.of_x.squares += off * off;
          part.product += g * off;
          if constexpr (kCentred) part.g += g;
        }
      }
    }
    part.of_x.squares = warp_reduce_sum(part.of_x.squares);
    part.product = warp_reduce_sum(part.product);
    if constexpr (kCentred) part.g = warp_reduce_sum(part.g);
    if constexpr (!kWarp) part = merge_gradient_group<kCentred>(part, exchange, turn, blocks, block);

    const float scale = rsqrtf(part.of_x.squares * call.per_column + call.eps), shift = -part.of_x.mean * scale;
    // dx = g * scale - h * slope - level
    const float level = part.g * call.per_column * scale, slope = part.product * call.per_column * scale * scale;
#pragma unroll kUnrolled
    for (int i = 0; i < kVecs; ++i) {
      if (i * step < left) {
        float values[N], gradients[N], weights[N], result[N], sums[N];
        vector(x, call.x, i).unpack(values);
        vector(dy, call.dy, i).unpack(gradients);
        weight_of(i, weights);
        weight_sums.get(i, sums);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float h = values[j] * scale + shift;
          sums[j] += gradients[j] * h;
          result[j] = gradients[j] * weights[j] * scale - (h * slope + level);
        }
        weight_sums.put(i, sums);
        if constexpr (kCentred) {
          bias_sums.get(i, sums);
#pragma unroll
          for (int j = 0; j < N; ++j) sums[j] += gradients[j];
          bias_sums.put(i, sums);
        }
        Packed<T, N>::pack(result).store_once(call.dx.data + r * call.dx.stride + first + i * step);
      }
    }
  }

  constexpr int kSums = kCentred ? 2 : 1;
  if constexpr (kWarp) {
    // the warps of a block add up in turn
    for (int turn_of = 0; turn_of < warps; ++turn_of) {
      if (warp == turn_of) {
#pragma unroll
        for (int i = 0; i < kVecs; ++i) {
          if (i * step < left) {
            float sums[N];
            weight_sums.get(i, sums);
#pragma unroll
            for (int j = 0; j < N; ++j) {
              float& total = shared[first + i * step + j];
              total = turn_of == 0 ? sums[j] : total + sums[j];
            }
            if constexpr (kCentred) {
              bias_sums.get(i, sums);
#pragma unroll
              for (int j = 0; j < N; ++j) {
                float& total = shared[cols + first + i * step + j];
                total = turn_of == 0 ? sums[j] : total + sums[j];
              }
            }
          }
        }
      }
      __syncthreads();
    }
    float* mine = partial + blockIdx.x * int64_t(kSums) * cols;
    for (int c = threadIdx.x; c < kSums * cols; c += blockDim.x) mine[c] = shared[c];
  } else {
    float* mine = partial + group * int64_t(kSums) * cols;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * step < left) {
        float sums[N];
        weight_sums.get(i, sums);
#pragma unroll
        for (int j = 0; j < N; ++j) mine[first + i * step + j] = sums[j];
        if constexpr (kCentred) {
          bias_sums.get(i, sums);
#pragma unroll
          for (int j = 0; j < N; ++j) mine[cols + first + i * step + j] = sums[j];
        }
      }
    }
  }
}

/// Adds up `groups` rows of partial sums: those of dweight, then those of dbias. A block has 32 columns, and 32 threads to each.
template <typename T>
__device__ __forceinline__ void add_columns(const float* partial, int64_t groups, int64_t cols, int64_t sums, T* dweight, T* dbias) {
  __shared__ float parts[kWarpSize][kWarpSize + 1];
  const int64_t column = int64_t(blockIdx.x) * kWarpSize + threadIdx.x % kWarpSize;
  const int part = threadIdx.x / kWarpSize;
  float sum = 0.0f;
  if (column < sums * cols) {
    for (int64_t g = part; g < groups; g += kWarpSize) sum += partial[g * sums * cols + column];
  }
  parts[part][threadIdx.x % kWarpSize] = sum;
  __syncthreads();
  // each warp now has one column's parts, a lane each
  sum = warp_reduce_sum(parts[threadIdx.x % kWarpSize][part]);
  const int64_t own = int64_t(blockIdx.x) * kWarpSize + part;
  if (threadIdx.x % kWarpSize == 0 && own < sums * cols) {
    if (own < cols) {
      dweight[own] = store_from_float<T>(sum);
    } else {
      dbias[own - cols] = store_from_float<T>(sum);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(1024) add_partial_sums(const float* partial, int64_t groups, int64_t cols, int64_t sums, T* dweight, T* dbias) {
  add_columns(partial, groups, cols, sums, dweight, dbias);
}

template <typename T, int N, int kVecs, bool kWarp, bool kCentred, bool kAhead, int kThreads>
inline void launch_norm_gradient(const NormGradient<T>& call, int blocks, int threads, cudaStream_t stream) {
  constexpr int64_t kSums = kCentred ? 2 : 1;
  const auto kernel = norm_gradient_rows<T, N, kVecs, kWarp, kCentred, kAhead, kThreads>;
  const int64_t cols = call.x.cols;
  const auto add_up = [&](const float* partial, int64_t groups) {
    OPFORGE_LAUNCH((add_partial_sums<T>), static_cast<unsigned>(ceil_div(kSums * cols, kWarpSize)), 1024, 0, stream, partial, groups, cols, kSums, call.dweight,
                   call.dbias);
  };
  if (call.x.rows == 0) return add_up(nullptr, 0);  // sums of nothing
  const std::size_t slice = std::size_t(kVecs) * threads * N * sizeof(float);
  const std::size_t shared = kWarp ? kSums * cols * sizeof(float) : kSums * slice + std::size_t(kVecs) * threads * sizeof(Packed<T, N>);
  const int64_t most = resident_clusters(kernel, blocks, threads, shared);
  const int64_t wanted = kWarp ? ceil_div(call.x.rows, threads / kWarpSize) : call.x.rows;
  const int64_t groups = ceil_div(wanted, ceil_div(wanted, most));
  const Scratch scratch(groups * kSums * cols * sizeof(float), stream);
  float* partial = static_cast<float*>(scratch.data());
  OPFORGE_LAUNCH_CLUSTERS((norm_gradient_rows<T, N, kVecs, kWarp, kCentred, kAhead, kThreads>), groups, blocks, threads, shared, stream, call, partial);
  add_up(partial, groups);
}

template <typename T, int N, bool kCentred>
inline void launch_norm_gradient_by(const NormGradient<T>& call, cudaStream_t stream) {
  // single elements have a register each: where two sums are added up fewer threads have room for the next row
  constexpr int kMany = N == 1 ? 4 : 1, kVecs = 4 * kMany, kThreads = N == 1 && kCentred ? 384 : 512;
  const int64_t vecs = ceil_div(call.x.cols, N);
  if (vecs <= 2 * kMany * kWarpSize) return launch_norm_gradient<T, N, 2 * kMany, true, kCentred, true, 128>(call, 1, 128, stream);
  if (vecs <= 4 * kMany * kWarpSize) return launch_norm_gradient<T, N, 4 * kMany, true, kCentred, true, 128>(call, 1, 128, stream);
  int blocks = 1;
  while (blocks < kNormMaxCluster && vecs > int64_t(blocks) * kVecs * kThreads) blocks *= 2;
  const int threads = static_cast<int>(ceil_div(ceil_div(vecs, int64_t(blocks) * kVecs), kWarpSize) * kWarpSize);
  if (threads <= kThreads) return launch_norm_gradient<T, N, kVecs, false, kCentred, true, kThreads>(call, blocks, threads, stream);
  constexpr bool kWider = N * kVecs * kThreads * kNormMaxCluster < kWidestGradient;
  OPFORGE_CHECK(kWider && threads <= kNormMaxThreads, ValueError, "a row of ", call.x.cols, " columns does not fit the registers of a cluster; use another implementation");
  if constexpr (N == 1) {
    launch_norm_gradient<T, N, kVecs, false, kCentred, false, kNormMaxThreads>(call, blocks, threads, stream);
  } else if constexpr (kWider) {
    // twice the vectors leave no room for the next row; blocks of twice the threads would spill
    const int half = static_cast<int>(ceil_div(threads / kWarpSize, 2) * kWarpSize);
    launch_norm_gradient<T, N, 2 * kVecs, false, kCentred, false, kThreads>(call, blocks, half, stream);
  }
}

/// Computes dx, dweight and (kCentred: layer normalisation) dbias.
template <bool kCentred, typename T>
inline void launch_norm_gradient(const NormGradient<T>& call, cudaStream_t stream) {
  if (call.x.cols == 0) return;
  const bool vectors = rows_vectorize(call.x) && rows_vectorize(call.dy) && rows_vectorize(call.dx) && can_vectorize(call.weight, call.x.cols);
  if (vectors) {
    launch_norm_gradient_by<T, kVecSize<T>, kCentred>(call, stream);
  } else {
    launch_norm_gradient_by<T, 1, kCentred>(call, stream);
  }
}

/// Checks the arguments of the gradient of layer normalisation (dbias null: of RMS normalisation) and hands a NormGradient<T>, and the
/// stream, to `launch`.
template <typename Launch>
inline void norm_gradient(const TensorView& x, const TensorView& weight, const TensorView& dy, const TensorView& dx, const TensorView& dweight,
                          const TensorView* dbias, double eps, Launch launch) {
  check_same_rows({{"x", x}, {"dy", dy}, {"dx", dx}});
  check_columns({{"weight", weight}, {"dweight", dweight}}, {"x", x});
  if (dbias != nullptr) check_columns({{"dbias", *dbias}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    launch(NormGradient<T>{as_rows<const T>(x), as_rows<const T>(dy), data<const T>(weight), as_rows<T>(dx), data<T>(dweight),
                           dbias != nullptr ? data<T>(*dbias) : nullptr, static_cast<float>(eps), 1.0f / static_cast<float>(x.size(-1))},
           current_stream(x));
  });
}

}  // namespace opforge

#endif  // OPFORGE_NORM_BACKWARD_H_
