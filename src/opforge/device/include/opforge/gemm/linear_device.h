// opforge/gemm/linear_device.h - what a linear layer does to its sums on a GPU: bias and activation, then a residual or the scale of an
// FP8 result.  An epilogue for gemm/mma.h, gemm/wgmma/launch.h and gemm_tiled.h (see gemm/common.h).
#ifndef OPFORGE_LINEAR_DEVICE_H_
#define OPFORGE_LINEAR_DEVICE_H_

#include <type_traits>

#include "opforge/numeric/math_device.h"
#include "opforge/gemm/common.h"
#include "opforge/gemm/linear_checks.h"

namespace opforge {
namespace linear {

/// The sigmoid with one special operation instead of two: 1 / d for d from 1 to 2 is a polynomial within 3e-4 (the best quartic, from the
/// fifth Chebyshev polynomial) and one step of Newton's, 1.5 ulp off.  For some of the elements, where special operations take the time.
__device__ __forceinline__ float sigmoid_multiplied(float x) {
  const float e = exp2_approximate(fabsf(x) * -1.44269504f), d = 1.0f + e;
  float r = 0.152245015f;
  r = fmaf(r, e, -0.532857597f);
  r = fmaf(r, e, 0.865893543f);
  r = fmaf(r, e, -0.984834969f);
  r = fmaf(r, e, 0.999702632f);
  r = fmaf(fmaf(-d, r, 1.0f), r, r);
  return (x > 0.0f ? 1.0f : e) * r;
}

// `multiplied` spares a special operation of silu, at the price of ten others.
template <int activation, bool multiplied = false>
__device__ __forceinline__ float activated(float z) {
  // asked this way round, NaN stays
  if constexpr (activation == kRelu) return z < 0.0f ? 0.0f : z;
  if constexpr (activation == kGelu) return z * normal_cdf(z);
  if constexpr (activation == kSilu) return z * (multiplied ? sigmoid_multiplied(z) : sigmoid(z));
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

// What comes after the activation changes pairs in place, `after(low, high, row, col, has_low, has_high)`, or all sums of a thread
// with what `after.hold()` asked memory for before.

/// Nothing comes after the activation.
struct Last {
  struct Loaded {};
  __device__ __forceinline__ Loaded hold() const { return {}; }
  __device__ __forceinline__ void operator()(float&, float&, int, int, bool, bool) const {}
};

/// A matrix of c's shape is added after the activation.
template <typename T>
struct Residual {
  const T* data;
  int64_t row, col;
  bool pairs;  // whether two neighbours may be loaded at once

  struct Loaded {};
  __device__ __forceinline__ Loaded hold() const { return {}; }

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

/// What is stored is the result over a scale of the whole tensor. An infinity times 0 is NaN: the conversion would make
/// the largest number of it.
struct Quantized {
  const float* scale;

  struct Loaded {
    float scale;
  };
  __device__ __forceinline__ Loaded hold() const { return {*scale}; }

  template <int count>
  __device__ __forceinline__ void apply(float (&sums)[count], const Loaded& loaded) const {
    // two factors where the reciprocal of a small scale would be infinite
    const float first = fabsf(loaded.scale) < 0x1p-64f ? 0x1p64f : 1.0f, second = 1.0f / (loaded.scale * first);
#pragma unroll
    for (float& sum : sums) sum = fmaf(sum, 0.0f, sum * second * first);
  }

  __device__ __forceinline__ void operator()(float& low, float& high, int, int, bool, bool) const {
    // no product with the reciprocal: of a small scale that is infinite
    low = fmaf(low, 0.0f, low / *scale);
    high = fmaf(high, 0.0f, high / *scale);
  }
};

/// activation(sum + bias), then `after`.  kMixed: half of the sums of a warpgroup get their silu with one special operation fewer.
template <typename T, typename After = Last, bool kMixed = false>
struct Epilogue {
  const T* bias;
  int64_t bias_step;
  bool pairs;  // whether two neighbouring biases may be loaded at once
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

  /// What a lane asks memory for before the products of a tile (gemm/wgmma/launch.h): two neighbouring biases of every 64 columns, which a
  /// warp reads whole and its lanes pass to each other later.
  template <int boxes>
  struct Loaded {
    uint32_t shifts[boxes];
    typename After::Loaded after;
  };

  template <int boxes>
  __device__ __forceinline__ Loaded<boxes> hold(int, int col0, int thread) const {
    static_assert(sizeof(T) == 2, "a lane passes two biases on at once");
    Loaded<boxes> loaded;
    const int first = col0 + thread % 32 * 2;
    if (pairs && col0 + 64 * boxes <= n) {
      // as words that nothing looks at before the shuffle: whoever takes them apart here waits for them here
#pragma unroll
      for (int box = 0; box < boxes; ++box) loaded.shifts[box] = *reinterpret_cast<const uint32_t*>(bias + first + box * 64);
    } else {
#pragma unroll
      for (int box = 0; box < boxes; ++box) {
        const int col = first + box * 64;
        Vec<T, 2> two;
        two[0] = col < n ? bias[col * bias_step] : store_from_float<T>(0.0f);
        two[1] = col + 1 < n ? bias[(col + 1) * bias_step] : store_from_float<T>(0.0f);
        loaded.shifts[box] = *reinterpret_cast<const uint32_t*>(&two);
      }
    }
    loaded.after = after.hold();
    return loaded;
  }

  /// All sums that a thread has in 64 columns from col0 on, or fewer at the end of a tile: its box number `box`.
  template <int count, int boxes>
  __device__ __forceinline__ void apply(float (&sums)[count], const Loaded<boxes>& loaded, int box, int row0, int col0, int thread) const {
    static_assert(count % 4 == 0 && count <= 32, "64 columns or fewer, each in two rows");
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      const uint32_t passed = __shfl_sync(kFullMask, loaded.shifts[box], i + thread % 4);
      const Vec<T, 2> two = *reinterpret_cast<const Vec<T, 2>*>(&passed);
      const float left = load_as_float(two[0]), right = load_as_float(two[1]);
      sums[i] += left;
      sums[i + 1] += right;
      sums[i + 2] += left;
      sums[i + 3] += right;
    }
    choose(activation, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < count; i += 2) {
        sums[i] = activated<decltype(chosen)::kActivation>(sums[i]);
        sums[i + 1] = activated<decltype(chosen)::kActivation, kMixed>(sums[i + 1]);
      }
    });
    if constexpr (std::is_same_v<After, Quantized>) {
      after.apply(sums, loaded.after);
    } else {
      gemm::each_pair(sums, row0, col0, thread, [&](float& low, float& high, int row, int col) { finish(low, high, row, col); });
    }
  }

  /// The same without what comes after the activation.
  Epilogue<T, Last, kMixed> before_adding() const { return {bias, bias_step, pairs, activation, m, n, {}}; }
};

/// The epilogue of a linear layer with results y, its arguments checked.  T is the dtype of bias.
template <typename T, bool kMixed = false, typename After = Last>
Epilogue<T, After, kMixed> epilogue_of(const TensorView& bias, const Matrix& y, int64_t activation, const After& after = {}) {
  check_bias(bias, y);
  check_activation(activation);
  const bool pairs = bias.stride(0) == 1 && reinterpret_cast<uintptr_t>(bias.data_ptr()) % (2 * sizeof(T)) == 0;
  return {data<const T>(bias), bias.stride(0), pairs, static_cast<int>(activation), static_cast<int>(y.rows), static_cast<int>(y.cols), after};
}

}  // namespace linear
}  // namespace opforge

#endif  // OPFORGE_LINEAR_DEVICE_H_
