// opforge/gemm/matrix.h - tensor arguments as matrices, or as batches of them: for kernels of both kinds, .cpp and .cu.
#ifndef OPFORGE_MATRIX_H_
#define OPFORGE_MATRIX_H_

#include "opforge/ffi.h"

namespace opforge {

/// A matrix in memory, or a batch of them: element (i, j) of matrix number b lies at data[b * batch_stride + i * row + j * col].
/// Strides are in elements; of a single matrix `batch` is 1.
struct Matrix {
  const char* name;
  void* data;
  DLDataType dtype;
  int64_t batch, rows, cols;
  int64_t batch_stride, row, col;

  /// The same elements with rows and columns exchanged.
  Matrix transposed() const { return {name, data, dtype, batch, cols, rows, batch_stride, col, row}; }
  int64_t numel() const { return batch * rows * cols; }
  /// The first element (the dtype has been dispatched on or checked before).
  template <typename T>
  T* typed() const {
    return static_cast<T*>(data);
  }
};

namespace detail {
inline Matrix matrix_of(const char* name, const TensorView& tensor, bool batch) {
  const int32_t dims = batch ? 3 : 2;
  OPFORGE_CHECK(tensor.ndim() == dims, ValueError, name, " must have ", dims, " dimensions (got ", tensor.ndim(), ")");
  return {name, tensor.data_ptr(), tensor.dtype(), batch ? tensor.size(0) : 1, tensor.size(-2), tensor.size(-1), batch ? tensor.stride(0) : 0, tensor.stride(-2), tensor.stride(-1)};
}
}  // namespace detail

/// A tensor argument as a Matrix that knows the argument's name: of 2 dimensions, or of 3 as a batch.
#define OPFORGE_MATRIX(tensor) ::opforge::detail::matrix_of(#tensor, tensor, false)
#define OPFORGE_MATRICES(tensor) ::opforge::detail::matrix_of(#tensor, tensor, true)

/// Checks that c can hold the product of a and b: extents that fit (and fit an int, blocks that reach past an edge included), and
/// operands of one dtype.
inline void check_product(const Matrix& a, const Matrix& b, const Matrix& c) {
  OPFORGE_CHECK(a.cols == b.rows && a.rows == c.rows && b.cols == c.cols && a.batch == b.batch && a.batch == c.batch, ValueError, a.name, " (", a.batch,
                " x ", a.rows, " x ", a.cols, ") times ", b.name, " (", b.batch, " x ", b.rows, " x ", b.cols, ") is not ", c.name, " (", c.batch, " x ",
                c.rows, " x ", c.cols, ")");
  for (const int64_t extent : {c.rows, c.cols, a.cols})
    OPFORGE_CHECK(extent < 2147483647 - 1024, ValueError, "an axis of ", extent, " is longer than 2^31 - 1025");
  OPFORGE_CHECK(same_dtype(a.dtype, b.dtype), TypeError, a.name, " and ", b.name, " must have the same dtype (", dtype_name(a.dtype), " and ",
                dtype_name(b.dtype), ")");
}

/// Checks that two matrices have one dtype.
inline void check_same_dtype(const Matrix& a, const Matrix& b) {
  OPFORGE_CHECK(same_dtype(a.dtype, b.dtype), TypeError, a.name, " and ", b.name, " must have the same dtype (", dtype_name(a.dtype), " and ",
                dtype_name(b.dtype), ")");
}

}  // namespace opforge

#endif  // OPFORGE_MATRIX_H_
