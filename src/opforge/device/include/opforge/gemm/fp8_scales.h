// opforge/gemm/fp8_scales.h - the arguments of a product of FP8 matrices with scales, checked: for .cpp and .cu files.
#ifndef OPFORGE_FP8_SCALES_H_
#define OPFORGE_FP8_SCALES_H_

#include "opforge/numeric/fp8.h"
#include "opforge/gemm/matrix.h"

namespace opforge {

constexpr int kScaleBlock = 128;  // terms, and rows of b, that share a scale of a block

/// Float32 scales: one at (row, block), rows and blocks counted up to the last one; an only row or block serves all.
struct Scales {
  const float* data;
  int64_t row, block;  // strides in elements, 0 where one serves all
  int64_t last_row, last_block;

  OPFORGE_FP8_INLINE const float* where(int64_t at_row, int64_t at_block) const {
    // beyond an edge are rows whose sums nobody stores: any scale will do, but it has to be in memory
    const int64_t i = at_row < last_row ? at_row : last_row, j = at_block < last_block ? at_block : last_block;
    return data + i * row + j * block;
  }
  OPFORGE_FP8_INLINE float at(int64_t at_row, int64_t at_block) const { return *where(at_row, at_block); }
};

/// A product that has been checked; b is n x k.
struct Fp8Product {
  Matrix a, b, y;
  Scales scale_a, scale_b;
  bool blockwise;
};

namespace detail {
inline Scales scales_of(const char* name, const TensorView& tensor, int64_t rows, int64_t blocks) {
  OPFORGE_CHECK(float_kind(tensor.dtype()) == FloatKind::kFloat32, TypeError, name, " must be float32 (got ", dtype_name(tensor.dtype()), ")");
  OPFORGE_CHECK(tensor.ndim() == 2 && tensor.size(0) == rows && tensor.size(1) == blocks, ValueError, name, " must be ", rows, " x ", blocks);
  return {static_cast<const float*>(tensor.data_ptr()), rows > 1 ? tensor.stride(0) : 0, blocks > 1 ? tensor.stride(1) : 0, rows - 1, blocks - 1};
}
inline int64_t blocks_of(int64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }
}  // namespace detail

/// Checks that y (m x n) can hold a (m x k) times b (n x k) transposed, and that the scales are those of `scaling`:
/// 0 one for each tensor, 1 one for each row, 2 blocks of 1 x 128 of a and 128 x 128 of b.
inline Fp8Product check_fp8_product(const TensorView& a, const TensorView& b, const TensorView& scale_a, const TensorView& scale_b, const TensorView& y,
                                    int scaling) {
  const Matrix left = OPFORGE_MATRIX(a), right = OPFORGE_MATRIX(b), out = OPFORGE_MATRIX(y);
  OPFORGE_CHECK(left.cols == right.cols && left.rows == out.rows && right.rows == out.cols, ValueError, "a (", left.rows, " x ", left.cols, ") times b (",
                right.rows, " x ", right.cols, ") transposed is not y (", out.rows, " x ", out.cols, ")");
  for (const int64_t extent : {left.rows, right.rows, left.cols})
    OPFORGE_CHECK(extent < 2147483647 - 1024, ValueError, "an axis of ", extent, " is longer than 2^31 - 1025");
  OPFORGE_CHECK(scaling >= 0 && scaling <= 2, ValueError, "scaling must be 0 (tensor), 1 (row) or 2 (block), got ", scaling);
  const int64_t blocks = scaling == 2 ? detail::blocks_of(left.cols) : 1;
  const int64_t rows_b = scaling == 0 ? 1 : scaling == 1 ? right.rows : detail::blocks_of(right.rows);
  for (const TensorView& operand : {a, b})
    OPFORGE_CHECK(holds_fp8<float8_e4m3_t>(operand) || holds_fp8<float8_e5m2_t>(operand), TypeError, "a and b must be float8_e4m3fn or float8_e5m2 (got ",
                  dtype_name(a.dtype()), " and ", dtype_name(b.dtype()), ")");
  return {left, right, out, detail::scales_of("scale_a", scale_a, scaling == 0 ? 1 : left.rows, blocks), detail::scales_of("scale_b", scale_b, rows_b, blocks),
          scaling == 2};
}

}  // namespace opforge

#endif  // OPFORGE_FP8_SCALES_H_
