// opforge/gemm/linear_host.h - what a linear layer does to its sums on a CPU: bias and activation, then a residual or the scale of an
// FP8 result.  An epilogue for gemm/host.h.
#ifndef OPFORGE_LINEAR_HOST_H_
#define OPFORGE_LINEAR_HOST_H_

#include <algorithm>
#include <vector>

#include "opforge/host.h"
#include "opforge/gemm/linear_checks.h"
#include "opforge/numeric/math.h"

namespace opforge {
namespace linear {

/// Nothing comes after the activation.
struct Last {
  void operator()(float*, int64_t, int64_t, int64_t) const {}
};

/// A matrix of c's shape is added after the activation.
template <typename T>
struct Residual {
  const T* data;
  int64_t row, col;

  void operator()(float* line, int64_t at_row, int64_t at_col, int64_t cols) const {
    const T* added = data + at_row * row + at_col * col;
    if (col != 1) {
      for (int64_t j = 0; j < cols; ++j) line[j] += load_as_float(added[j * col]);
      return;
    }
    constexpr int64_t kPart = 32;
    alignas(64) float part[kPart];
    for (int64_t first = 0; first < cols; first += kPart) {
      const int64_t now = std::min(kPart, cols - first);
      convert_to_float(added + first, part, now);
      for (int64_t j = 0; j < now; ++j) line[first + j] += part[j];
    }
  }
};

/// What is stored is the result over a scale of the whole tensor. An infinity times 0 is NaN: the conversion would make
/// the largest number of it.
struct Quantized {
  float scale;

  void operator()(float* line, int64_t, int64_t, int64_t cols) const {
    for (int64_t j = 0; j < cols; ++j) line[j] = line[j] / scale + line[j] * 0.0f;
  }
};

/// activation(sum + bias), then `after`, a line at a time.  T is the dtype of bias.
template <typename T, typename After = Last>
class Epilogue {
 public:
  Epilogue(const TensorView& bias, const Matrix& y, int64_t activation, const After& after = {})
      : activation_(activation), after_(after) {
    check_bias(bias, y);
    check_activation(activation);
    // every element is used once for each row
    bias_.resize(bias.numel());
    for (size_t j = 0; j < bias_.size(); ++j) bias_[j] = load_as_float(data<const T>(bias)[static_cast<int64_t>(j) * bias.stride(0)]);
  }

  void operator()(float* line, int64_t, int64_t row, int64_t col, int64_t cols) const {
    for (int64_t j = 0; j < cols; ++j) line[j] += bias_[col + j];
    switch (activation_) {
      case kRelu:
        // asked this way round, NaN stays
        for (int64_t j = 0; j < cols; ++j) line[j] = line[j] < 0.0f ? 0.0f : line[j];
        break;
      case kGelu:
        for (int64_t j = 0; j < cols; ++j) line[j] *= normal_cdf(line[j]);
        break;
      case kSilu:
        for (int64_t j = 0; j < cols; ++j) {
          const Sigmoid s = sigmoid(line[j]);
          line[j] = line[j] * s.share / s.total;
        }
        break;
      default: break;
    }
    after_(line, row, col, cols);
  }

 private:
  std::vector<float> bias_;
  int64_t activation_;
  After after_;
};

}  // namespace linear
}  // namespace opforge

#endif  // OPFORGE_LINEAR_HOST_H_
