// opforge/attention/rotary_host.h - queries and keys turned by the angles of their places on the CPU, token by token.
#ifndef OPFORGE_ROTARY_HOST_H_
#define OPFORGE_ROTARY_HOST_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "opforge/attention/rotary_checks.h"
#include "opforge/host.h"

namespace opforge {

namespace detail {

// The pairs of one head in float32, in place. Sines have the sign of the rotation.
inline void turn_pairs(float* __restrict__ x, const float* __restrict__ cos, const float* __restrict__ sin,
                       int64_t half, bool interleaved) {
  if (interleaved) {
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  float* __restrict__ second = x + half;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = second[i];
    x[i] = a * cos[i] - b * sin[i];
    second[i] = b * cos[i] + a * sin[i];
  }
}

template <typename T>
inline void turn_heads(const TensorView& x, const TensorView& y, int64_t batch, int64_t token, const float* cos,
                       const float* sin, int64_t half, bool interleaved, float* floats, T* line) {
  const int64_t heads = x.size(2), dim = x.size(3), step = x.stride(3), turned = 2 * half;
  const T* source = data<const T>(x) + batch * x.stride(0) + token * x.stride(1);
  T* target = data<T>(y) + (batch * x.size(1) + token) * heads * dim;
  for (int64_t h = 0; h < heads; ++h, source += x.stride(2), target += dim) {
    const T* from = source;
    if (step != 1) {
      for (int64_t i = 0; i < dim; ++i) line[i] = source[i * step];
      from = line;
    }
    convert_to_float(from, floats, turned);
    turn_pairs(floats, cos, sin, half, interleaved);
    convert_from_float(floats, target, turned);
    std::copy(from + turned, from + dim, target + turned);
  }
}

template <typename T>
inline void rotate_tokens(const TensorView& q, const TensorView& k, const TensorView& cos, const TensorView& sin,
                          const std::optional<TensorView>& positions, const TensorView& q_out, const TensorView& k_out,
                          bool interleaved, float sign) {
  const int64_t tokens = q.size(1), dim = q.size(3), places = cos.size(0), half = cos.size(1);
  const int64_t grain = (1 << 14) / ((q.size(2) + k.size(2)) * dim + 1) + 1;  // tokens that are worth a thread
  parallel_for(0, q.size(0) * tokens, grain, [&](int64_t first, int64_t last) {
    std::vector<float> floats(2 * half), cosines(half), sines(half);
    std::vector<T> line(dim);
    for (int64_t row = first; row < last; ++row) {
      const int64_t batch = row / tokens, token = row % tokens;
      const int64_t place =
          positions ? data<const int64_t>(*positions)[batch * positions->stride(0) + token * positions->stride(1)]
                    : token;
      if (place >= 0 && place < places) {
        const float* c = data<const float>(cos) + place * cos.stride(0);
        const float* s = data<const float>(sin) + place * sin.stride(0);
        for (int64_t i = 0; i < half; ++i) cosines[i] = c[i * cos.stride(1)], sines[i] = sign * s[i * sin.stride(1)];
      } else {  // there is no such place: there is no answer
        std::fill(cosines.begin(), cosines.end(), NAN);
        std::fill(sines.begin(), sines.end(), NAN);
      }
      turn_heads(q, q_out, batch, token, cosines.data(), sines.data(), half, interleaved, floats.data(), line.data());
      turn_heads(k, k_out, batch, token, cosines.data(), sines.data(), half, interleaved, floats.data(), line.data());
    }
  });
}

}  // namespace detail

/// q and k [batch, tokens, heads, dim], in any strides, turned by `sign` times their angles into contiguous outputs.
inline void rotate(const TensorView& q, const TensorView& k, const TensorView& cos, const TensorView& sin,
                   const std::optional<TensorView>& positions, const TensorView& q_out, const TensorView& k_out,
                   bool interleaved, float sign) {
  check_rotary(q, k, cos, sin, positions, q_out, k_out);
  OPFORGE_DISPATCH_DTYPE(q, T, detail::rotate_tokens<T>(q, k, cos, sin, positions, q_out, k_out, interleaved, sign));
}

}  // namespace opforge

#endif  // OPFORGE_ROTARY_HOST_H_
