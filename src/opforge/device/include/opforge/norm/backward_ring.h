// opforge/norm/backward_ring.h - gradients of layer and RMS normalisation on the GPU: rows wait in shared memory, several ahead.
//
// The formulas, the single exchange of a row's sums and the second kernel are those of opforge/norm/backward.h. There the next row
// waits in registers and the column sums in shared memory, which are read and written again for every row; here they change places.
// Each thread copies its own vectors of the rows to come into its own words of shared memory (cp.async), so that no barrier is
// needed for them and no register holds what is on its way, and it adds dweight and dbias up in registers. A row belongs to some
// warps of a block, as many rows at once as it has warps for; one barrier of those warps exchanges the row's sums. The second kernel
// begins while the first one runs, and waits for its end (programmatic dependent launch, from sm_90 on).
//
// A row must fit one block. What does not begin on the 16-byte grid takes the groups of opforge/norm/backward.h, an element at a time.
/* opforge
layouts = ["contiguous", "rows"]
[space]
VECS = [0, 1, 2, 4]
STAGES = [0, 2, 3, 4]
THREADS = [0, 256, 384, 512, 896]
[default]
VECS = 0
STAGES = 0
THREADS = 0
*/
#ifndef OPFORGE_NORM_BACKWARD_RING_H_
#define OPFORGE_NORM_BACKWARD_RING_H_

#include "opforge/norm/backward.h"
#include "opforge/arch/tensor_core.h"

namespace opforge {

#ifdef OPFORGE_EMULATE
// (the rows of a block go round together here, and so one barrier serves all of them)
inline void row_barrier(int, int, const char* file = __builtin_FILE(), int line = __builtin_LINE()) { emu::wait_block({file, line}); }
inline void start_kernel_after() {}
inline void wait_for_prior_kernel() {}
#else
/// A barrier of the `threads` that share row `row` of their block; barrier 0 is that of the whole block.
__device__ __forceinline__ void row_barrier(int row, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(row + 1), "r"(threads) : "memory"); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
// before Hopper a kernel begins when the one before it has ended
__device__ __forceinline__ void start_kernel_after() {}
__device__ __forceinline__ void wait_for_prior_kernel() {}
#else
/// Lets the next kernel's blocks begin once every block of this one has said so.
__device__ __forceinline__ void start_kernel_after() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
/// Waits until the kernel before this one has ended and its writes can be seen.
__device__ __forceinline__ void wait_for_prior_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif
#endif

/// A vector that lies in shared memory.
template <typename T, int N>
__device__ __forceinline__ Packed<T, N> vector_in_shared(const uint4& words) {
  Packed<T, N> v;
  v.words[0] = words.x, v.words[1] = words.y, v.words[2] = words.z, v.words[3] = words.w;
  return v;
}

/// Hides what a vector's elements are: the compiler would keep the floats of the first unpacking for the second, and spill them.
template <typename T, int N>
__device__ __forceinline__ void forget_elements(Packed<T, N>& v) {
#pragma unroll
  for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(v.words[w]));
}

/// Merges what the warps of a row know: lane l has part l % width (a power of two), every lane gets the whole; `per_column` is 1 / columns.
/// The count stays the part's own.
template <bool kCentred>
__device__ __forceinline__ GradientMoments merge_row_parts(GradientMoments part, int width, float per_column) {
  float g = 0.0f;
  if constexpr (kCentred) {
    float mean = part.of_x.count * part.of_x.mean;
    g = part.g;
    for (int o = width / 2; o > 0; o /= 2) {
      mean += __shfl_xor_sync(kFullMask, mean, o);
      g += __shfl_xor_sync(kFullMask, g, o);
    }
    mean *= per_column;
    const float off = part.of_x.mean - mean;
    part.of_x.squares += part.of_x.count * off * off;
    part.product += off * part.g;
    part.of_x.mean = mean;
  }
  part.g = g;
  for (int o = width / 2; o > 0; o /= 2) {
    part.of_x.squares += __shfl_xor_sync(kFullMask, part.of_x.squares, o);
    part.product += __shfl_xor_sync(kFullMask, part.product, o);
  }
  return part;
}

// With kWhole every thread has kVecs vectors of a row. Shared memory: kStages rows of x and dy for each thread, then (kVecs 4) a row's
// weights; at the end the column sums.
template <typename T, bool kCentred, bool kWhole, int kVecs, int kStages, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) norm_gradient_ring(NormGradient<T> call, int warps_of_row, float* partial) {
  OPFORGE_DYNAMIC_SHARED(uint4, shared);
  __shared__ GradientMoments by_warp[2][kWarpSize];
  constexpr int N = kVecSize<T>, kSums = kCentred ? 2 : 1;
  constexpr bool kWeightsShared = kVecs >= 4;
  const int threads = blockDim.x, lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int at_once = threads / (warps_of_row * kWarpSize), which = warp / warps_of_row;  // rows of this block, and ours of them
  const int width = warps_of_row * kWarpSize, rank = threadIdx.x - which * width;
  const int64_t groups = int64_t(gridDim.x) * at_once;
  const int cols = static_cast<int>(call.x.cols), step = width * N, first = rank * N;
  int power = 1;
  while (power < warps_of_row) power *= 2;
  float count = 0.0f;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) count += static_cast<float>(max(0, min(cols - (first - lane * N) - i * step, kWarpSize * N)));
  const float share = count > 0.0f ? 1.0f / count : 0.0f;

  const auto inside = [&](int c) { return kWhole || c < cols; };
  const auto slot = [&](int stage, int input, int i) { return shared + ((stage * 2 + input) * kVecs + i) * threads + threadIdx.x; };
  const auto fetch = [&](int64_t r, int stage) {
    if (r < call.x.rows) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        const int c = first + i * step;
        if (inside(c)) {
          start_copy(slot(stage, 0, i), call.x.data + r * call.x.stride + c, 16);
          start_copy(slot(stage, 1, i), call.dy.data + r * call.dy.stride + c, 16);
        }
      }
    }
    commit_copies();
  };
  int64_t r = int64_t(blockIdx.x) * at_once + which;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) fetch(r + s * groups, s);

  // the weights of this thread's columns: in registers where there is room, else in shared memory, once for all rows of the block
  uint4* kept = shared + kStages * 2 * kVecs * threads;
  Packed<T, N> held[kWeightsShared ? 1 : kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (inside(first + i * step)) {
      const Packed<T, N> w = Packed<T, N>::load(call.weight + first + i * step);
      if constexpr (kWeightsShared) {
        kept[i * width + rank] = make_uint4(w.words[0], w.words[1], w.words[2], w.words[3]);
      } else {
        held[i] = w;
      }
    }
  }
  if constexpr (kWeightsShared) __syncthreads();
  const auto weights_of = [&](int i, float(&weights)[N]) {
    if constexpr (kWeightsShared) {
      vector_in_shared<T, N>(kept[i * width + rank]).unpack(weights);
    } else {
      held[i].unpack(weights);
    }
  };
  float weight_sums[kVecs][N] = {}, bias_sums[kCentred ? kVecs : 1][N] = {};
  start_kernel_after();

  int stage = 0, turn = 0;
  // every warp of a block makes as many rounds, with a row or without one
  for (int64_t base = int64_t(blockIdx.x) * at_once; base < call.x.rows; base += groups, r += groups, turn ^= 1) {
    fetch(r + (kStages - 1) * groups, stage == 0 ? kStages - 1 : stage - 1);
    wait_for_copies<kStages - 1>();
    const bool here = r < call.x.rows;
    Packed<T, N> x[kVecs], dy[kVecs];
    GradientMoments part{{count, 0.0f, 0.0f}, 0.0f, 0.0f};
    if (here) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (inside(first + i * step)) {
          x[i] = vector_in_shared<T, N>(*slot(stage, 0, i));
          dy[i] = vector_in_shared<T, N>(*slot(stage, 1, i));
        }
      }
      if constexpr (kCentred) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kVecs; ++i) {
          if (inside(first + i * step)) {
            float values[N];
            x[i].unpack(values);
#pragma unroll
            for (float v : values) sum += v;
          }
        }
        part.of_x.mean = warp_reduce_sum(sum) * share;
      }
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (inside(first + i * step)) {
          if constexpr (kCentred) forget_elements(x[i]);
          float values[N], gradients[N], weights[N];
          x[i].unpack(values);
          dy[i].unpack(gradients);
          weights_of(i, weights);
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
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
    if (warps_of_row > 1) {
      if (lane == 0) by_warp[turn][warp] = part;
      row_barrier(which, width);
      const GradientMoments none{{0.0f, 0.0f, 0.0f}, 0.0f, 0.0f};
      const int source = lane & (power - 1);
      part = merge_row_parts<kCentred>(source < warps_of_row ? by_warp[turn][which * warps_of_row + source] : none, power, call.per_column);
    }

    if (here) {
      const float scale = rsqrtf(part.of_x.squares * call.per_column + call.eps), shift = -part.of_x.mean * scale;
      // dx = g * scale - h * slope - level, with h = x * scale + shift
      const float slope = part.product * call.per_column * scale * scale, level = part.g * call.per_column * scale;
      const float of_x = -scale * slope, rest = -(shift * slope + level);
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        const int c = first + i * step;
        if (inside(c)) {
          forget_elements(x[i]);
          forget_elements(dy[i]);
          float values[N], gradients[N], weights[N], result[N];
          x[i].unpack(values);
          dy[i].unpack(gradients);
          weights_of(i, weights);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            weight_sums[i][j] += gradients[j] * fmaf(values[j], scale, shift);
            if constexpr (kCentred) bias_sums[i][j] += gradients[j];
            result[j] = fmaf(gradients[j] * weights[j], scale, fmaf(values[j], of_x, rest));
          }
          Packed<T, N>::pack(result).store_once(call.dx.data + r * call.dx.stride + c);
        }
      }
    }
  }

  // the rows that the block worked on together, added up in their order
  wait_for_copies<0>();
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared);
  const int slice = kVecs * width * N;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
#pragma unroll
    for (int q = 0; q < N; q += 4) {
      Vec<float, 4> of_weight, of_bias;
#pragma unroll
      for (int j = 0; j < 4; ++j) of_weight[j] = weight_sums[i][q + j], of_bias[j] = bias_sums[kCentred ? i : 0][q + j];
      float* own = sums + which * kSums * slice + (i * width + rank) * N + q;
      of_weight.store(own);
      if constexpr (kCentred) of_bias.store(own + slice);
    }
  }
  __syncthreads();
  float* mine = partial + int64_t(blockIdx.x) * kSums * cols;
  for (int k = 0; k < kSums; ++k) {
    for (int c = threadIdx.x; c < cols; c += threads) {
      float sum = 0.0f;
      for (int a = 0; a < at_once; ++a) sum += sums[(a * kSums + k) * slice + c];
      mine[k * cols + c] = sum;
    }
  }
}

/// add_partial_sums, begun before the kernel that makes them has ended.
template <typename T>
__global__ void __launch_bounds__(1024) add_partial_sums_after(const float* partial, int64_t groups, int64_t cols, int64_t sums, T* dweight, T* dbias) {
  wait_for_prior_kernel();
  add_columns(partial, groups, cols, sums, dweight, dbias);
}

template <typename T>
inline void launch_add_partial_sums_after(const float* partial, int64_t groups, int64_t cols, int64_t sums, T* dweight, T* dbias, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(ceil_div(sums * cols, kWarpSize));
#ifdef OPFORGE_EMULATE
  OPFORGE_LAUNCH((add_partial_sums_after<T>), blocks, 1024, 0, stream, partial, groups, cols, sums, dweight, dbias);
#else
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDevAttrComputeCapabilityMajor");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(1024);
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = major >= 9 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, add_partial_sums_after<T>, partial, groups, cols, sums, dweight, dbias), "add_partial_sums_after");
#endif
}

template <typename T, bool kCentred, bool kWhole, int kVecs, int kStages, int kThreads>
inline void launch_norm_ring(const NormGradient<T>& call, int warps_of_row, cudaStream_t stream) {
  static_assert(kThreads % kWarpSize == 0 && kThreads <= 30 * kWarpSize, "15 barriers for rows of two warps and more");
  constexpr int64_t kSums = kCentred ? 2 : 1;
  const int64_t rows = call.x.rows, cols = call.x.cols;
  const int width = warps_of_row * kWarpSize;
  const auto shared_for = [&](int threads) {
    const std::size_t ring = std::size_t(kStages) * 32 * kVecs * threads + (kVecs >= 4 ? 16 * kVecs * width : 0);
    const std::size_t sums = kSums * kVecs * kVecSize<T> * threads * sizeof(float);
    return ring > sums ? ring : sums;
  };
  int64_t at_once = kThreads / width;
  const std::size_t most_shared = shared_for(static_cast<int>(at_once) * width);
  OPFORGE_CHECK(static_cast<int64_t>(most_shared) <= max_dynamic_shared(), ValueError, "rows of ", cols, " columns take ", most_shared,
                " bytes of shared memory, more than this device has; use another implementation");
  const auto kernel = norm_gradient_ring<T, kCentred, kWhole, kVecs, kStages, kThreads>;
  const int64_t most = resident_clusters(kernel, 1, static_cast<int>(at_once) * width, most_shared);
  // few rows spread over all of the device
  if (rows < most * at_once) at_once = ceil_div(rows, most);
  const int threads = static_cast<int>(at_once) * width;
  const std::size_t shared = shared_for(threads);
  const int64_t wanted = ceil_div(rows, at_once), blocks = ceil_div(wanted, ceil_div(wanted, most));
  const Scratch scratch(blocks * kSums * cols * sizeof(float), stream);
  float* partial = static_cast<float*>(scratch.data());
  OPFORGE_LAUNCH_CLUSTERS((norm_gradient_ring<T, kCentred, kWhole, kVecs, kStages, kThreads>), blocks, 1, threads, shared, stream, call, warps_of_row, partial);
  launch_add_partial_sums_after<T>(partial, blocks, cols, kSums, call.dweight, call.dbias, stream);
}

template <bool kCentred, int kVecs, int kStages, int kThreads, typename T>
inline void launch_norm_ring_of(const NormGradient<T>& call, cudaStream_t stream) {
  const int64_t vecs = ceil_div(call.x.cols, kVecSize<T>), warps = ceil_div(vecs, kVecs * kWarpSize);
  OPFORGE_CHECK(warps <= kThreads / kWarpSize, ValueError, "a row of ", call.x.cols, " columns does not fit ", kThreads, " threads with ", kVecs,
                " vectors each; use another config or implementation");
  if constexpr (kVecs > 1) {
    if (vecs == warps * kVecs * kWarpSize) return launch_norm_ring<T, kCentred, true, kVecs, kStages, kThreads>(call, static_cast<int>(warps), stream);
  }
  launch_norm_ring<T, kCentred, false, kVecs, kStages, kThreads>(call, static_cast<int>(warps), stream);
}

/// The fastest of those measured on one H200 (the READMEs of layernorm_backward and rmsnorm_backward have the figures).
template <bool kCentred, typename T>
inline void launch_norm_ring_by_width(const NormGradient<T>& call, cudaStream_t stream) {
  constexpr bool k16Bits = sizeof(T) == 2;
  const int64_t bytes = call.x.cols * static_cast<int64_t>(sizeof(T));
  if (bytes <= 512) return launch_norm_ring_of<kCentred, 1, 4, 896>(call, stream);
  if constexpr (kCentred) {
    // 16-bit rows of layer normalisation have the most to compute: more vectors a thread share an exchange
    if (bytes <= (k16Bits ? 1024 : 16384)) return launch_norm_ring_of<true, 2, 3, 512>(call, stream);
    launch_norm_ring_of<true, 4, 2, 384>(call, stream);
  } else {
    if (bytes <= 8192) return launch_norm_ring_of<false, 2, 3, 512>(call, stream);
    // (sm_80, not measured: less shared memory)
    if (max_dynamic_shared() < 229376) return launch_norm_ring_of<false, 4, 2, 512>(call, stream);
    if (bytes <= 24576) return launch_norm_ring_of<false, 4, k16Bits ? 3 : 2, 384>(call, stream);
    launch_norm_ring_of<false, 4, 3, 512>(call, stream);
  }
}

/// Rows off the 16-byte grid, an element at a time; without the next row in registers, which would spill.
template <bool kCentred, typename T>
inline void launch_norm_off_grid(const NormGradient<T>& call, cudaStream_t stream) {
  constexpr int kVecs = 16, kThreads = 512;
  const int64_t cols = call.x.cols;
  if (cols <= kVecs / 2 * kWarpSize) return launch_norm_gradient<T, 1, kVecs / 2, true, kCentred, true, 128>(call, 1, 128, stream);
  int blocks = 1;
  while (cols > int64_t(blocks) * kVecs * kThreads) blocks *= 2;
  const int threads = static_cast<int>(ceil_div(ceil_div(cols, int64_t(blocks) * kVecs), kWarpSize) * kWarpSize);
  launch_norm_gradient<T, 1, kVecs, false, kCentred, false, kThreads>(call, blocks, threads, stream);
}

/// Computes dx, dweight and (kCentred: layer normalisation) dbias.
///
/// kVecs      vectors of 16 bytes that a thread has of a row; 0: this and the others by width
/// kStages    rows that a thread has in shared memory, on their way or in use
/// kThreads   threads of a block at most
template <bool kCentred, int kVecs, int kStages, int kThreads, typename T>
inline void launch_norm_gradient_ring(const NormGradient<T>& call, cudaStream_t stream) {
  if (call.x.cols == 0) return;
  if (call.x.rows == 0) {  // sums of nothing
    return launch_add_partial_sums_after<T>(nullptr, 0, call.x.cols, kCentred ? 2 : 1, call.dweight, call.dbias, stream);
  }
  const bool vectors = rows_vectorize(call.x) && rows_vectorize(call.dy) && rows_vectorize(call.dx) && can_vectorize(call.weight, call.x.cols);
  if (!vectors) {
    launch_norm_off_grid<kCentred>(call, stream);
  } else if constexpr (kVecs == 0) {
    launch_norm_ring_by_width<kCentred>(call, stream);
  } else {
    launch_norm_ring_of<kCentred, kVecs, kStages, kThreads>(call, stream);
  }
}

}  // namespace opforge

#endif  // OPFORGE_NORM_BACKWARD_RING_H_
