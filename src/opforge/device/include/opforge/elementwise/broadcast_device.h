// opforge/elementwise/broadcast_device.h - y[i] = f(x[i], b[offset(i)], ...) on the GPU: x and y contiguous, the b's broadcast
// over any of the axes.
//
// Neighbouring axes over which the b's behave alike are made one on the host, so at most four are left and
// usually one or two.  x and y are then one row of 16-byte vectors; the place in b costs a multiplication
// and a shift per axis and vector.
/* opforge
[default]
THREADS = 256
UNROLL = 1

[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4, 8]

[limits]
one_block_does_not_outgrow_small_calls = "THREADS * UNROLL <= 2048"
*/
#ifndef OPFORGE_BROADCAST_DEVICE_H_
#define OPFORGE_BROADCAST_DEVICE_H_

#include "opforge/elementwise/broadcast_axes.h"
#include "opforge/elementwise/device.h"

namespace opforge {

/// Division of a number below 2^31 by one divisor (Granlund and Montgomery, Division by Invariant Integers
/// using Multiplication, PLDI 1994, figure 4.1).
struct Divider {
  uint32_t divisor = 1, magic = 1, shift = 0;
  Divider() = default;
  explicit Divider(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t(1) << shift) < divisor) ++shift;
    magic = static_cast<uint32_t>(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - divisor)) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

/// The elements of a launch: Divider and 32-bit places end there.  The emulator's launches end early, so that the halving is verified.
#ifdef OPFORGE_EMULATE
constexpr int64_t kLaunchElements = 8192;
#else
constexpr int64_t kLaunchElements = int64_t(1) << 31;
#endif

namespace detail {

// What the kernel gets of BroadcastAxes.
struct BroadcastOffsets {
  Divider size[BroadcastAxes::kMost];
  uint32_t stride[BroadcastAxes::kMost];

  template <int A>
  __device__ __forceinline__ uint32_t at(uint32_t i) const {
    uint32_t offset = 0;
#pragma unroll
    for (int k = 0; k < A - 1; ++k) {
      const uint32_t rest = size[k].divide(i);
      offset += (i - rest * size[k].divisor) * stride[k];
      i = rest;
    }
    return offset + i * stride[A - 1];
  }
};

// How a vector of x meets the b's.
enum class Meeting {
  kVectors,   // with as many neighbours, aligned
  kOne,       // with one element
  kTwo,       // with one element up to some place, and with the next one from there
  kElements,  // each element with its own
};

template <typename T, int N, Meeting kMeeting, int A, int K, typename F>
__device__ __forceinline__ void broadcast_vector(const F& f, const Vec<T, N>& x, const Pointers<const T, K>& b, const BroadcastOffsets& offsets, uint32_t i, T* y) {
  float value[N][K + 1], result[N];
  if constexpr (kMeeting == Meeting::kTwo) {
    const uint32_t last = offsets.template at<A>(i + N - 1), offset = offsets.template at<A>(i);
    const uint32_t left = offsets.size[0].divisor - (i - offsets.size[0].divide(i) * offsets.size[0].divisor);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const float here = load_as_float(b.p[k][offset]), next = load_as_float(b.p[k][last]);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j][k + 1] = j < left ? here : next;
    }
  } else if constexpr (kMeeting == Meeting::kElements) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t offset = offsets.template at<A>(i + j);
#pragma unroll
      for (int k = 0; k < K; ++k) value[j][k + 1] = load_as_float(b.p[k][offset]);
    }
  } else {
    const uint32_t offset = offsets.template at<A>(i);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if constexpr (kMeeting == Meeting::kVectors) {
        const auto near = Vec<T, N>::load(b.p[k] + offset);
#pragma unroll
        for (int j = 0; j < N; ++j) value[j][k + 1] = load_as_float(near[j]);
      } else {
        const float one = load_as_float(b.p[k][offset]);
#pragma unroll
        for (int j = 0; j < N; ++j) value[j][k + 1] = one;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float out[1];
    value[j][0] = load_as_float(x[j]);
    call_map(f, value[j], out, std::make_index_sequence<K + 1>(), std::make_index_sequence<1>());
    result[j] = out[0];
  }
  Vec<T, N> rounded;
  if constexpr (N == 1) {
    rounded[0] = store_from_float<T>(result[0]);
  } else {
#pragma unroll
    for (int j = 0; j < N; j += 2) store_pair(result[j], result[j + 1], rounded.v + j);
  }
  rounded.store_global(y + i);
}

}  // namespace detail

// As map_vectors; n < 2^31.
template <typename T, int N, detail::Meeting kMeeting, int A, int Threads, int Unroll, int K, typename F>
__global__ void __launch_bounds__(Threads)
    broadcast_vectors(T* __restrict__ y, const T* __restrict__ x, Pointers<const T, K> b, detail::BroadcastOffsets offsets, uint32_t head, uint32_t n, F f) {
  constexpr uint32_t kTile = Threads * Unroll;
  const uint32_t vectors = (n - head) / N, tile = blockIdx.x * kTile;
  const uint32_t begin = head + (tile + threadIdx.x) * N;
  const uint32_t left = vectors - tile < kTile ? vectors - tile : kTile;
  if (left == kTile) {
    Vec<T, N> v[Unroll];
#pragma unroll
    for (int u = 0; u < Unroll; ++u) v[u] = load_once<T, N>(x + begin + u * (Threads * N));
#pragma unroll
    for (int u = 0; u < Unroll; ++u) detail::broadcast_vector<T, N, kMeeting, A>(f, v[u], b, offsets, begin + u * (Threads * N), y);
  } else {
    for (uint32_t u = threadIdx.x; u < left; u += Threads) {
      const uint32_t i = head + (tile + u) * N;
      detail::broadcast_vector<T, N, kMeeting, A>(f, load_once<T, N>(x + i), b, offsets, i, y);
    }
  }
  const uint32_t rest = n - vectors * N;
  if (blockIdx.x == 0 && threadIdx.x < rest) {
    const uint32_t i = threadIdx.x < head ? threadIdx.x : vectors * N + threadIdx.x;
    detail::broadcast_vector<T, 1, detail::Meeting::kElements, A>(f, Vec<T, 1>::load(x + i), b, offsets, i, y);
  }
}

/// y = f(x, b...) with the b's all broadcast in the same way; y must not overlap the others.
template <int Threads, int Unroll, typename T, typename F, int K>
inline void broadcast_map(cudaStream_t stream, BroadcastAxes axes, T* y, const F& f, const T* x, Pointers<const T, K> b) {
  using detail::Meeting;
  constexpr int N = kVecSize<T>;
  const int64_t n = axes.numel();
  if (n == 0) return;
  const int outer = axes.count - 1;
  if (n >= kLaunchElements) {
    // two halves of the outermost axis, until a launch can count its elements
    const int64_t half = axes.size[outer] / 2, below = n / axes.size[outer];
    BroadcastAxes first = axes, second = axes;
    first.size[outer] = half;
    second.size[outer] -= half;
    if (half == 1) --first.count;
    if (second.size[outer] == 1) --second.count;
    broadcast_map<Threads, Unroll>(stream, first, y, f, x, b);
    for (const T*& p : b.p) p += half * axes.stride[outer];
    broadcast_map<Threads, Unroll>(stream, second, y + half * below, f, x + half * below, b);
    return;
  }
  detail::BroadcastOffsets offsets;
  bool vectors_fit = axes.count > 0 && axes.size[0] % N == 0;
  for (int k = 0; k < BroadcastAxes::kMost; ++k) {
    offsets.size[k] = Divider(axes.size[k]);
    offsets.stride[k] = static_cast<uint32_t>(axes.stride[k]);
    if (k > 0 && offsets.stride[k] % N != 0 && axes.count > 0 && axes.stride[0] == 1) vectors_fit = false;
  }
  int64_t head = elements_to_alignment(y);
  const bool same_alignment = elements_to_alignment(x) == head;
  head = head < n ? head : n;
  bool aligned = true;
  for (const T* p : b.p) aligned = aligned && elements_to_alignment(p) == 0;
  const auto launch = [&](auto kernel, int64_t skipped, int64_t vectors) {
    const int64_t blocks = ceil_div(vectors, int64_t(Threads) * Unroll);
    OPFORGE_LAUNCH(kernel, static_cast<unsigned>(blocks < 1 ? 1 : blocks), Threads, 0, stream, y, x, b, offsets, static_cast<uint32_t>(skipped),
                   static_cast<uint32_t>(n), f);
  };
#define OPFORGE_BROADCAST(size, meeting, axis_count, skipped, vectors) \
  launch(broadcast_vectors<T, size, Meeting::meeting, axis_count, Threads, Unroll, K, F>, skipped, vectors)
  const int64_t vectors = (n - head) / N;
  if (!same_alignment)
    OPFORGE_BROADCAST(1, kElements, 4, 0, n);
  else if (vectors_fit && head == 0 && aligned && axes.stride[0] == 1 && axes.count <= 2)
    OPFORGE_BROADCAST(N, kVectors, 2, head, vectors);
  else if (vectors_fit && head == 0 && aligned && axes.stride[0] == 1)
    OPFORGE_BROADCAST(N, kVectors, 4, head, vectors);
  else if (vectors_fit && head == 0 && axes.stride[0] == 0 && axes.count <= 3)
    OPFORGE_BROADCAST(N, kOne, 3, head, vectors);
  else if (vectors_fit && head == 0 && axes.stride[0] == 0)
    OPFORGE_BROADCAST(N, kOne, 4, head, vectors);
  else if (axes.count > 1 && axes.count <= 3 && axes.stride[0] == 0 && axes.size[0] >= N)
    OPFORGE_BROADCAST(N, kTwo, 3, head, vectors);
  else if (axes.count <= 2)
    OPFORGE_BROADCAST(N, kElements, 2, head, vectors);
  else
    OPFORGE_BROADCAST(N, kElements, 4, head, vectors);
#undef OPFORGE_BROADCAST
}

}  // namespace opforge

#endif  // OPFORGE_BROADCAST_DEVICE_H_
