// opforge/gemm/linear_checks.h - the arguments of linear layers, for kernels of both kinds, .cpp and .cu.
#ifndef OPFORGE_LINEAR_CHECKS_H_
#define OPFORGE_LINEAR_CHECKS_H_

#include "opforge/numeric/fp8.h"
#include "opforge/gemm/matrix.h"

namespace opforge {
namespace linear {

// the choices of the operators' parameter `activation`, in their order
enum Activation { kNone, kRelu, kGelu, kSilu };

inline void check_activation(int64_t activation) {
  OPFORGE_CHECK(activation >= kNone && activation <= kSilu, ValueError, "activation must be 0 (none), 1 (relu), 2 (gelu) or 3 (silu), not ", activation);
}

/// Checks that a bias has an element for each column of y.
inline void check_bias(const TensorView& bias, const Matrix& y) {
  OPFORGE_CHECK(bias.ndim() == 1 && bias.size(0) == y.cols, ValueError, "bias must have ", y.cols, " elements");
}

/// Checks that a residual has the shape of what it is added to.
inline void check_residual(const Matrix& residual, const Matrix& y) {
  OPFORGE_CHECK(residual.rows == y.rows && residual.cols == y.cols, ValueError, residual.name, " must have the shape of ", y.name, ", ", y.rows, " x ", y.cols);
  check_same_dtype(residual, y);
}

/// Checks that a result is stored as E4M3, and that its scale is one float32.
inline void check_quantized(const TensorView& y, const TensorView& scale) {
  OPFORGE_CHECK(holds_fp8<float8_e4m3_t>(y), TypeError, "y must be float8_e4m3fn (got ", dtype_name(y.dtype()), ")");
  OPFORGE_CHECK(scale.numel() == 1 && float_kind(scale.dtype()) == FloatKind::kFloat32, TypeError, "scale must be one float32");
}

}  // namespace linear
}  // namespace opforge

#endif  // OPFORGE_LINEAR_CHECKS_H_
