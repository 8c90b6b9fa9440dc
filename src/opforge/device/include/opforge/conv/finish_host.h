// opforge/conv/finish_host.h - what follows a convolution on a CPU: a residual, then an activation, on a line of float32 sums.
#ifndef OPFORGE_CONV_FINISH_HOST_H_
#define OPFORGE_CONV_FINISH_HOST_H_

#include "opforge/conv/host.h"
#include "opforge/gemm/linear_checks.h"
#include "opforge/numeric/math.h"

namespace opforge {
namespace conv {

/// activation(sum + residual); the sums have begun with the bias.  T is the dtype of the residual.
template <typename T>
class Finish {
 public:
  Finish(const std::optional<TensorView>& residual, const TensorView& y, int64_t activation) : activation_(activation) {
    linear::check_activation(activation);
    if (!residual.has_value()) return;
    const TensorView& added = *residual;
    OPFORGE_CHECK_SAME_SHAPE(added, y);
    OPFORGE_CHECK_SAME_DTYPE(added, y);
    data_ = data<const T>(added);
    for (int i = 0; i < 4; ++i) stride_[i] = added.stride(i);
  }

  void operator()(float* line, int64_t count, int64_t filter, int64_t image, int64_t row, int64_t column) const {
    if (data_ != nullptr) {
      const T* added = data_ + image * stride_[0] + filter * stride_[1] + row * stride_[2] + column * stride_[3];
      for (int64_t j = 0; j < count; ++j) line[j] += load_as_float(added[j * stride_[3]]);
    }
    switch (activation_) {
      case linear::kRelu:
        // asked this way round, NaN stays
        for (int64_t j = 0; j < count; ++j) line[j] = line[j] < 0.0f ? 0.0f : line[j];
        break;
      case linear::kGelu:
        for (int64_t j = 0; j < count; ++j) line[j] *= normal_cdf(line[j]);
        break;
      case linear::kSilu:
        for (int64_t j = 0; j < count; ++j) {
          const Sigmoid s = sigmoid(line[j]);
          line[j] = line[j] * s.share / s.total;
        }
        break;
      default:
        break;
    }
  }

 private:
  const T* data_ = nullptr;
  int64_t stride_[4] = {}, activation_;
};

}  // namespace conv
}  // namespace opforge

#endif  // OPFORGE_CONV_FINISH_HOST_H_
