// opforge/attention/rotary.h - queries and keys turned by the angles of their places on the GPU: a block takes a token.
/* opforge
[default]
THREADS = 128
UNROLL = 2

[space]
THREADS = [64, 128, 256]
UNROLL = [1, 2, 4]
*/
#ifndef OPFORGE_ROTARY_H_
#define OPFORGE_ROTARY_H_

#include "opforge/attention/rotary_checks.h"
#include "opforge/elementwise/device.h"

namespace opforge {

namespace detail {

/// Queries, or keys: x in strides, y contiguous.
template <typename T>
struct TurnedHeads {
  const T* x;
  T* y;
  int64_t batch, token, head, element;
  int heads;
};

struct Angles {
  const float *cos, *sin;
  const int64_t* positions;
  int64_t cos_place, cos_step, sin_place, sin_step, positions_batch, positions_token, places;
  float sign;
};

/// Consecutive angles of a token; NaN where it has no place.
template <int N>
struct Turn {
  float c[N], s[N];

  __device__ __forceinline__ void load(const Angles& angles, int64_t place, int at) {
    if (place < 0) {
#pragma unroll
      for (int j = 0; j < N; ++j) c[j] = s[j] = NAN;
      return;
    }
    const float* cos = angles.cos + place * angles.cos_place;
    const float* sin = angles.sin + place * angles.sin_place;
    if constexpr (N == 1) {
      c[0] = __ldg(cos + at * angles.cos_step);
      s[0] = __ldg(sin + at * angles.sin_step) * angles.sign;
    } else {
      constexpr int kStep = N < 4 ? N : 4;
#pragma unroll
      for (int j = 0; j < N; j += kStep) {
        const auto some_c = Vec<float, kStep>::load(cos + at + j), some_s = Vec<float, kStep>::load(sin + at + j);
#pragma unroll
        for (int i = 0; i < kStep; ++i) c[j + i] = some_c[i], s[j + i] = some_s[i] * angles.sign;
      }
    }
  }
};

template <typename T, int N>
__device__ __forceinline__ void store_floats(const float (&values)[N], T* at) {
  Vec<T, N> rounded;
  if constexpr (N == 1) {
    rounded[0] = store_from_float<T>(values[0]);
  } else {
#pragma unroll
    for (int j = 0; j < N; j += 2) store_pair(values[j], values[j + 1], rounded.v + j);
  }
  rounded.store_global(at);
}

// A unit is what a thread takes at a time: the vectors of both halves, a vector of pairs, or a vector of what is copied.
// N == 1: a pair, or an element; strides are any there.
template <typename T, int N, bool kPairs, int Threads, int Unroll>
__global__ void __launch_bounds__(Threads) rotate_tokens(TurnedHeads<T> q, TurnedHeads<T> k, Angles angles,
                                                         unsigned tokens, int dim, int half) {
  constexpr bool kInside = kPairs && N > 1;  // both of a pair lie in one vector
  const int64_t row = blockIdx.x, batch = blockIdx.x / tokens, token = blockIdx.x % tokens;
  int64_t place = token;
  if (angles.positions != nullptr) {
    place = angles.positions[batch * angles.positions_batch + token * angles.positions_token];
    if (place >= angles.places) place = -1;
  }
  const int turning = kInside ? 2 * half / N : half / N, units = turning + (dim - 2 * half) / N;
  const int all = (q.heads + k.heads) * units;
  const T* q_at = q.x + batch * q.batch + token * q.token;
  const T* k_at = k.x + batch * k.batch + token * k.token;
  for (int first = threadIdx.x; first < all; first += Threads * Unroll) {
    Vec<T, N> a[Unroll], b[Unroll];
    T* out[Unroll];
    int unit[Unroll];
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const int i = first + u * Threads;
      if (i >= all) break;
      int head = static_cast<unsigned>(i) / static_cast<unsigned>(units);
      unit[u] = i - head * units;
      const bool keys = head >= q.heads;
      if (keys) head -= q.heads;
      const T* x = keys ? k_at + head * k.head : q_at + head * q.head;
      const int64_t step = N > 1 ? 1 : keys ? k.element : q.element;
      out[u] = keys ? k.y + (row * k.heads + head) * dim : q.y + (row * q.heads + head) * dim;
      const bool turns = unit[u] < turning;
      const int at = kInside  ? unit[u] * N
                     : !turns ? 2 * half + (unit[u] - turning) * N
                     : kPairs ? 2 * unit[u]
                              : unit[u] * N;
      a[u] = load_once<T, N>(x + at * step);
      if (!kInside && turns) b[u] = load_once<T, N>(x + (at + (kPairs ? 1 : half)) * step);
      out[u] += at;
    }
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      if (first + u * Threads >= all) break;
      if (unit[u] >= turning) {
        a[u].store_global(out[u]);
        continue;
      }
      if constexpr (kInside) {
        Turn<N / 2> turn;
        turn.load(angles, place, unit[u] * (N / 2));
        float y[N];
#pragma unroll
        for (int j = 0; j < N / 2; ++j) {
          const float left = load_as_float(a[u][2 * j]), right = load_as_float(a[u][2 * j + 1]);
          y[2 * j] = left * turn.c[j] - right * turn.s[j];
          y[2 * j + 1] = right * turn.c[j] + left * turn.s[j];
        }
        store_floats<T, N>(y, out[u]);
      } else {
        Turn<N> turn;
        turn.load(angles, place, unit[u] * N);
        float y[N], z[N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float left = load_as_float(a[u][j]), right = load_as_float(b[u][j]);
          y[j] = left * turn.c[j] - right * turn.s[j];
          z[j] = right * turn.c[j] + left * turn.s[j];
        }
        store_floats<T, N>(y, out[u]);
        store_floats<T, N>(z, out[u] + (kPairs ? 1 : half));
      }
    }
  }
}

/// Whether every head begins at a whole vector of 16 bytes; an axis of one has any stride.
template <typename T>
inline bool heads_are_vectors(const TensorView& x) {
  constexpr int N = kVecSize<T>;
  if (reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 != 0 || x.stride(3) != 1) return false;
  for (int axis = 0; axis < 3; ++axis)
    if (x.size(axis) > 1 && x.stride(axis) % N != 0) return false;
  return true;
}

inline bool angles_are_vectors(const TensorView& table) {
  return reinterpret_cast<uintptr_t>(table.data_ptr()) % 16 == 0 && table.stride(1) == 1 &&
         (table.size(0) <= 1 || table.stride(0) % 4 == 0);
}

template <typename T>
inline TurnedHeads<T> turned_heads(const TensorView& x, const TensorView& y) {
  return {data<const T>(x),           data<T>(y), x.stride(0), x.stride(1), x.stride(2), x.stride(3),
          static_cast<int>(x.size(2))};
}

template <int Threads, int Unroll, typename T>
inline void rotate_as(const TensorView& q, const TensorView& k, const TensorView& q_out, const TensorView& k_out,
                      const TensorView& cos, const TensorView& sin, const Angles& angles, bool interleaved) {
  constexpr int N = kVecSize<T>;
  const int dim = static_cast<int>(q.size(3)), half = static_cast<int>(cos.size(1));
  const bool whole = dim % N == 0 && (interleaved ? 2 * half : half) % N == 0 && half % 4 == 0;
  const bool vectors = whole && heads_are_vectors<T>(q) && heads_are_vectors<T>(k) && heads_are_vectors<T>(q_out) &&
                       heads_are_vectors<T>(k_out) && angles_are_vectors(cos) && angles_are_vectors(sin);
  const int64_t rows = q.size(0) * q.size(1);
  OPFORGE_CHECK(rows < (int64_t(1) << 31) && (q.size(2) + k.size(2)) * dim < (int64_t(1) << 30), ValueError,
                "there are too many tokens, or heads, for one launch");
  const auto launch = [&](auto kernel) {
    OPFORGE_LAUNCH(kernel, static_cast<unsigned>(rows), Threads, 0, current_stream(q), turned_heads<T>(q, q_out),
                   turned_heads<T>(k, k_out), angles, static_cast<unsigned>(q.size(1)), dim, half);
  };
  if (interleaved) {
    launch(vectors ? rotate_tokens<T, N, true, Threads, Unroll> : rotate_tokens<T, 1, true, Threads, Unroll>);
  } else {
    launch(vectors ? rotate_tokens<T, N, false, Threads, Unroll> : rotate_tokens<T, 1, false, Threads, Unroll>);
  }
}

}  // namespace detail

/// q and k [batch, tokens, heads, dim], in any strides, turned by `sign` times their angles into contiguous outputs.
template <int Threads, int Unroll>
inline void rotate(const TensorView& q, const TensorView& k, const TensorView& cos, const TensorView& sin,
                   const std::optional<TensorView>& positions, const TensorView& q_out, const TensorView& k_out,
                   bool interleaved, float sign) {
  check_rotary(q, k, cos, sin, positions, q_out, k_out);
  OPFORGE_CHECK_DEVICE(q);
  OPFORGE_CHECK_DEVICE(cos);
  OPFORGE_CHECK_DEVICE(sin);
  detail::Angles angles{data<const float>(cos),
                        data<const float>(sin),
                        nullptr,
                        cos.stride(0),
                        cos.stride(1),
                        sin.stride(0),
                        sin.stride(1),
                        0,
                        0,
                        cos.size(0),
                        sign};
  if (positions.has_value()) {
    OPFORGE_CHECK_DEVICE(*positions);
    angles.positions = data<const int64_t>(*positions);
    angles.positions_batch = positions->stride(0);
    angles.positions_token = positions->stride(1);
  }
  if (q.numel() + k.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(q, T,
                         detail::rotate_as<Threads, Unroll, T>(q, k, q_out, k_out, cos, sin, angles, interleaved));
}

}  // namespace opforge

#endif  // OPFORGE_ROTARY_H_
