// opforge/elementwise/device.h - out[i] = f(a[i], b[i], ...) on the GPU, in float32, 16 bytes at a time.
/* opforge
any_rank = true

[default]
THREADS = 128
UNROLL = 1

[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4, 8]
*/
#ifndef OPFORGE_ELEMENTWISE_DEVICE_H_
#define OPFORGE_ELEMENTWISE_DEVICE_H_

#include <type_traits>

#include "opforge/abi/checks.h"
#include "opforge/device.h"

namespace opforge {

/// Loads a vector that no other thread needs.  Nothing may write to it in this kernel.  It is not told to pass by the L1 cache:
/// L1::no_allocate costs 5 % of vector_add on an H200 (50.8 us against 47.9 for 2^25 bfloat16); what stores are told makes no difference.
template <typename T, int N>
__device__ __forceinline__ Vec<T, N> load_once(const T* p) {
#ifndef OPFORGE_EMULATE
  if constexpr (sizeof(Vec<T, N>) == 16) {
    union {
      uint4 bits;
      Vec<T, N> vec;
    } u{__ldg(reinterpret_cast<const uint4*>(p))};
    return u.vec;
  }
#endif
  return Vec<T, N>::load(p);
}

/// Rounds two floats to stored elements with one instruction where there is one.
template <typename T>
__device__ __forceinline__ void store_pair(float a, float b, T* out) {
  if constexpr (sizeof(T) == 4) {
    out[0] = store_from_float<T>(a);
    out[1] = store_from_float<T>(b);
  } else if constexpr (std::is_same<T, half_t>::value) {
    const __half2 pair = __floats2half2_rn(a, b);
    out[0] = __low2half(pair);
    out[1] = __high2half(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    out[0] = __low2bfloat16(pair);
    out[1] = __high2bfloat16(pair);
  }
}

// ---------------------------------------------------------------------------
// Maps
// ---------------------------------------------------------------------------

/// Several tensors of one dtype, as one kernel argument.
template <typename T, int K>
struct Pointers {
  T* p[K];
};

namespace detail {

// f(in..., out&...) or, with one output, out = f(in...)
template <typename F, int K, int O, std::size_t... I, std::size_t... J>
__device__ __forceinline__ void call_map(const F& f, const float (&in)[K], float (&out)[O], std::index_sequence<I...>, std::index_sequence<J...>) {
  if constexpr (O == 1) {
    out[0] = f(in[I]...);
  } else {
    f(in[I]..., out[J]...);
  }
}

template <typename T, int N, int O, int K, typename F>
__device__ __forceinline__ void map_vector(const F& f, const Vec<T, N> (&v)[K], const Pointers<T, O>& out, int64_t at) {
  float result[O][N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float element[K], value[O];
#pragma unroll
    for (int k = 0; k < K; ++k) element[k] = load_as_float(v[k][j]);
    call_map(f, element, value, std::make_index_sequence<K>(), std::make_index_sequence<O>());
#pragma unroll
    for (int o = 0; o < O; ++o) result[o][j] = value[o];
  }
#pragma unroll
  for (int o = 0; o < O; ++o) {
    Vec<T, N> rounded;
    if constexpr (N == 1) {
      rounded[0] = store_from_float<T>(result[o][0]);
    } else {
#pragma unroll
      for (int j = 0; j < N; j += 2) store_pair(result[o][j], result[o][j + 1], rounded.v + j);
    }
    rounded.store_global(out.p[o] + at);
  }
}

}  // namespace detail

// Each thread has Unroll vectors of every input in flight; a block's accesses are contiguous.  All blocks but
// the last have full tiles, which need no comparison.
// The first `head` elements, up to the first aligned address, and the last n % N go one by one.
template <typename T, int N, int Threads, int Unroll, int K, int O, typename F>
__global__ void __launch_bounds__(Threads) map_vectors(Pointers<T, O> out, Pointers<const T, K> in, int64_t head, int64_t n, F f) {
  constexpr int kTile = Threads * Unroll;
  const int64_t vectors = (n - head) / N;
  const int64_t tile = int64_t(blockIdx.x) * kTile;
  const int64_t begin = head + (tile + threadIdx.x) * N;
  const int left = vectors - tile < kTile ? static_cast<int>(vectors - tile) : kTile;
  Vec<T, N> v[Unroll][K];
  if (left == kTile) {
#pragma unroll
    for (int u = 0; u < Unroll; ++u)
#pragma unroll
      for (int k = 0; k < K; ++k) v[u][k] = load_once<T, N>(in.p[k] + begin + u * (Threads * N));
#pragma unroll
    for (int u = 0; u < Unroll; ++u) detail::map_vector<T, N, O>(f, v[u], out, begin + u * (Threads * N));
  } else {
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      if (u * Threads + static_cast<int>(threadIdx.x) >= left) break;
#pragma unroll
      for (int k = 0; k < K; ++k) v[u][k] = load_once<T, N>(in.p[k] + begin + u * (Threads * N));
      detail::map_vector<T, N, O>(f, v[u], out, begin + u * (Threads * N));
    }
  }
  const int64_t rest = n - vectors * N;
  if (blockIdx.x == 0 && threadIdx.x < rest) {
    const int64_t i = threadIdx.x < head ? threadIdx.x : vectors * N + threadIdx.x;
    Vec<T, 1> one[K];
#pragma unroll
    for (int k = 0; k < K; ++k) one[k] = Vec<T, 1>::load(in.p[k] + i);
    detail::map_vector<T, 1, O>(f, one, out, i);
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

/// f over n > 0 elements: `float f(a, ...)` for one output, `void f(a, ..., float& y, ...)` for several.
/// Tensors that are misaligned alike go 16 bytes at a time too; those that differ go element by element.
/// Outputs must not overlap inputs.
template <int Threads, int Unroll, typename T, typename F, int O, int K>
inline void map(cudaStream_t stream, int64_t n, const Pointers<T, O>& out, const F& f, const Pointers<const T, K>& in) {
  constexpr int N = kVecSize<T>;
  int64_t head = elements_to_alignment(out.p[0]);
  bool same_alignment = true;
  for (const T* p : out.p) same_alignment = same_alignment && elements_to_alignment(p) == head;
  for (const T* p : in.p) same_alignment = same_alignment && elements_to_alignment(p) == head;
  const auto launch = [&](auto kernel, int64_t skipped, int64_t vectors) {
    const int64_t blocks = ceil_div(vectors, int64_t(Threads) * Unroll);
    OPFORGE_CHECK(blocks < (int64_t(1) << 31), ValueError, "the tensors are too long for one launch: split them");
    OPFORGE_LAUNCH(kernel, static_cast<unsigned>(blocks < 1 ? 1 : blocks), Threads, 0, stream, out, in, skipped, n, f);
  };
  if (!same_alignment) {
    launch(map_vectors<T, 1, Threads, Unroll, K, O, F>, 0, n);
    return;
  }
  head = head < n ? head : n;
  launch(map_vectors<T, N, Threads, Unroll, K, O, F>, head, (n - head) / N);
}

/// out[i] = f(in[i]...) for one output.
template <int Threads, int Unroll, typename T, typename F, typename... In>
inline void map(cudaStream_t stream, int64_t n, T* out, const F& f, const In*... in) {
  map<Threads, Unroll, T, F, 1, sizeof...(In)>(stream, n, Pointers<T, 1>{{out}}, f, Pointers<const T, sizeof...(In)>{{in...}});
}

/// y = f(x, ...) for contiguous tensors of one shape and dtype, on their device's current stream. Raises ValueError or TypeError where
/// they do not fit together.
template <int Threads, int Unroll, typename F>
inline void map_tensors(const F& f, const Named& y, const Named& x) {
  check_same_layout({x, y});
  check_device(x);
  if (x.tensor.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x.tensor, T, map<Threads, Unroll>(current_stream(x.tensor), x.tensor.numel(), data<T>(y.tensor), f, data<const T>(x.tensor)));
}
template <int Threads, int Unroll, typename F>
inline void map_tensors(const F& f, const Named& y, const Named& a, const Named& b) {
  check_same_layout({a, b, y});
  check_device(a);
  if (a.tensor.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(a.tensor, T,
                         map<Threads, Unroll>(current_stream(a.tensor), a.tensor.numel(), data<T>(y.tensor), f, data<const T>(a.tensor), data<const T>(b.tensor)));
}

}  // namespace opforge

#endif  // OPFORGE_ELEMENTWISE_DEVICE_H_
