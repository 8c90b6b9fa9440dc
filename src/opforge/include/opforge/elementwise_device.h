// opforge/elementwise_device.h - out[i] = f(a[i], b[i], ...) on the GPU, in float32, 16 bytes at a time.
#ifndef OPFORGE_ELEMENTWISE_DEVICE_H_
#define OPFORGE_ELEMENTWISE_DEVICE_H_

#include "opforge/device.h"

namespace opforge {

/// The inputs of a map, as one kernel argument.
template <typename T, int K>
struct MapInputs {
  const T* p[K];
};

/// f of one or two stored elements, computed in float32 and rounded once.
template <typename F, typename T, int K>
__device__ __forceinline__ T apply(const F& f, const T (&v)[K]) {
  static_assert(K == 1 || K == 2, "a map has one or two inputs");
  if constexpr (K == 1) {
    return store_from_float<T>(f(load_as_float(v[0])));
  } else {
    return store_from_float<T>(f(load_as_float(v[0]), load_as_float(v[1])));
  }
}

// Each thread has Unroll vectors of every input in flight; a block's accesses are contiguous.
// The first `head` elements, up to the first aligned address, and the last n % N go one by one.
template <typename T, int N, int Threads, int Unroll, int K, typename F>
__global__ void __launch_bounds__(Threads)
    map_vectors(T* out, MapInputs<T, K> in, int64_t head, int64_t n, F f) {
  const int64_t vectors = (n - head) / N;
  constexpr int64_t kTile = int64_t(Threads) * Unroll;
  for (int64_t tile = blockIdx.x * kTile; tile < vectors; tile += gridDim.x * kTile) {
    Vec<T, N> v[Unroll][K];
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int64_t i = tile + u * Threads + threadIdx.x;
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (i < vectors) v[u][k] = Vec<T, N>::load(in.p[k] + head + i * N);
    }
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int64_t i = tile + u * Threads + threadIdx.x;
      if (i >= vectors) continue;
      Vec<T, N> result;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        T element[K];
#pragma unroll
        for (int k = 0; k < K; ++k) element[k] = v[u][k][j];
        result[j] = apply(f, element);
      }
      result.store(out + head + i * N);
    }
  }
  const int64_t rest = n - vectors * N;
  if (blockIdx.x == 0 && threadIdx.x < rest) {
    const int64_t i = threadIdx.x < head ? threadIdx.x : vectors * N + threadIdx.x;
    T element[K];
#pragma unroll
    for (int k = 0; k < K; ++k) element[k] = in.p[k][i];
    out[i] = apply(f, element);
  }
}

/// Elements from p to the first address that is a multiple of 16 bytes.
template <typename T>
inline int64_t elements_to_alignment(const T* p) {
  return static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(p) % 16) % 16 / sizeof(T));
}

/// The number of blocks for `tiles` tiles; kernels stride over what a grid cannot hold.
inline unsigned grid_for(int64_t tiles) {
  constexpr int64_t kMost = (int64_t(1) << 31) - 1;
  return static_cast<unsigned>(tiles < 1 ? 1 : tiles < kMost ? tiles : kMost);
}

/// out[i] = f(in[i]...) for i in [0, n), n > 0.  Tensors that are misaligned alike go
/// 16 bytes at a time too; those that differ go element by element.
template <int Threads, int Unroll, typename T, typename F, typename... In>
inline void map(cudaStream_t stream, int64_t n, T* out, F f, const In*... in) {
  constexpr int K = sizeof...(In);
  constexpr int N = kVecSize<T>;
  const MapInputs<T, K> inputs{{in...}};
  int64_t head = elements_to_alignment(out);
  const bool alike = ((elements_to_alignment(in) == head) && ...);
  if (alike) {
    head = head < n ? head : n;
    const unsigned blocks = grid_for(ceil_div((n - head) / N, int64_t(Threads) * Unroll));
    OPFORGE_LAUNCH((map_vectors<T, N, Threads, Unroll, K, F>), blocks, Threads, 0, stream, out, inputs, head, n, f);
  } else {
    const unsigned blocks = grid_for(ceil_div(n, int64_t(Threads) * Unroll));
    OPFORGE_LAUNCH((map_vectors<T, 1, Threads, Unroll, K, F>), blocks, Threads, 0, stream, out, inputs, int64_t(0), n, f);
  }
}

}  // namespace opforge

#endif  // OPFORGE_ELEMENTWISE_DEVICE_H_
