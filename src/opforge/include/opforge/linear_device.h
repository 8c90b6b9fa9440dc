// opforge/linear_device.h - what a linear layer does to its sums on a GPU: bias and activation, then a residual or the scale of an
// FP8 result.  An epilogue for gemm_mma.h, gemm_wgmma.h and gemm_tiled.h (see gemm.h).
#ifndef OPFORGE_LINEAR_DEVICE_H_
#define OPFORGE_LINEAR_DEVICE_H_

#include "opforge/device_math.h"
#include "opforge/gemm.h"
#include "opforge/linear_checks.h"

namespace opforge {
namespace linear {

template <int activation>
__device__ __forceinline__ float activated(float z) {
  // asked this way round, NaN stays
  if constexpr (activation == kRelu) return z < 0.0f ? 0.0f : z;
  if constexpr (activation == kGelu) return z * normal_cdf(z);
  if constexpr (activation == kSilu) return z * sigmoid(z);
  return z;
}

template <int value>
struct Chosen {
  static constexpr int kActivation = value;
};

/// Calls `body` with the activation as a constant: the choice is made once, not for every element.
template <typename Body>
__device__ __forceinline__ void choose(int activation, const Body& body) {
  switch (activation) {
    case kRelu: return body(Chosen<kRelu>());
    case kGelu: return body(Chosen<kGelu>());
    case kSilu: return body(Chosen<kSilu>());
    default: return body(Chosen<kNone>());
  }
}

/// Nothing comes after the activation.
struct Last {
  __device__ __forceinline__ void operator()(float&, float&, int, int, bool, bool) const {}
};

/// A matrix of c's shape is added after the activation.
template <typename T>
struct Residual {
  const T* data;
  int64_t row, col;
  bool pairs;  // whether two neighbours may be loaded at once

  __device__ __forceinline__ void operator()(float& low, float& high, int at_row, int at_col, bool has_low, bool has_high) const {
    if (!has_low) return;
    const T* p = data + at_row * row + at_col * col;
    if (pairs && has_high) {
      const Vec<T, 2> two = Vec<T, 2>::load(p);
      low += load_as_float(two[0]);
      high += load_as_float(two[1]);
    } else {
      low += load_as_float(p[0]);
      if (has_high) high += load_as_float(p[col]);
    }
  }
};

template <typename T>
Residual<T> residual_of(const Matrix& matrix) {
  const bool pairs = matrix.col == 1 && matrix.row % 2 == 0 && reinterpret_cast<uintptr_t>(matrix.data) % (2 * sizeof(T)) == 0;
  return {matrix.typed<const T>(), matrix.row, matrix.col, pairs};
}

/// What is stored is the result over a scale of the whole tensor.
struct Quantized {
  const float* scale;

  __device__ __forceinline__ void operator()(float& low, float& high, int, int, bool, bool) const {
    // no product with the reciprocal: of a small scale that is infinite
    low /= *scale;
    high /= *scale;
  }
};

/// activation(sum + bias), then `after`.
template <typename T, typename After = Last>
struct Epilogue {
  const T* bias;
  int64_t bias_step;
  int activation, m, n;
  After after;

  static constexpr bool kReads = true;

  __device__ __forceinline__ float shift(int col) const { return col < n ? load_as_float(bias[col * bias_step]) : 0.0f; }

  __device__ __forceinline__ void finish(float& low, float& high, int row, int col) const { after(low, high, row, col, row < m && col < n, row < m && col + 1 < n); }

  __device__ __forceinline__ void operator()(float& low, float& high, int row, int col) const {
    low += shift(col);
    high += shift(col + 1);
    choose(activation, [&](auto chosen) {
      low = activated<decltype(chosen)::kActivation>(low);
      high = activated<decltype(chosen)::kActivation>(high);
    });
    finish(low, high, row, col);
  }

  template <int count>
  __device__ __forceinline__ void apply(float (&sums)[count], int row0, int col0, int thread) const {
    // each column is there twice, in two rows
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      const int col = col0 + thread % 4 * 2 + i / 4 * 8;
      const float left = shift(col), right = shift(col + 1);
      sums[i] += left;
      sums[i + 1] += right;
      sums[i + 2] += left;
      sums[i + 3] += right;
    }
    choose(activation, [&](auto chosen) {
#pragma unroll
      for (float& sum : sums) sum = activated<decltype(chosen)::kActivation>(sum);
    });
    gemm::each_pair(sums, row0, col0, thread, [&](float& low, float& high, int row, int col) { finish(low, high, row, col); });
  }
};

/// The epilogue of a linear layer with results y, its arguments checked.  T is the dtype of bias.
template <typename T, typename After = Last>
Epilogue<T, After> epilogue_of(const TensorView& bias, const Matrix& y, int64_t activation, const After& after = {}) {
  check_bias(bias, y);
  check_activation(activation);
  return {data<const T>(bias), bias.stride(0), static_cast<int>(activation), static_cast<int>(y.rows), static_cast<int>(y.cols), after};
}

}  // namespace linear
}  // namespace opforge

#endif  // OPFORGE_LINEAR_DEVICE_H_
