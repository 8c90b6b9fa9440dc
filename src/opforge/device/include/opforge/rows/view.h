// opforge/rows/view.h - a tensor argument seen as rows, for kernels that work row by row.
#ifndef OPFORGE_ROWS_H_
#define OPFORGE_ROWS_H_

#include "opforge/abi/checks.h"

namespace opforge {

/// `rows` rows of `cols` neighbouring elements each; a row begins `stride` elements after the last.
template <typename T>
struct Rows {
  T* data;
  int64_t rows, cols, stride;
};

/// Raises ValueError unless a tensor argument is a matrix whose rows are contiguous (their stride is free).
inline void check_rows(const Named& matrix) {
  const TensorView& x = matrix.tensor;
  OPFORGE_CHECK(x.ndim() == 2, ValueError, matrix.name, " must have 2 dimensions (got ", x.ndim(), ")");
  OPFORGE_CHECK(x.IsContiguous() || x.size(1) == 1 || x.stride(1) == 1, ValueError, matrix.name, " must have contiguous rows");
}

/// Raises ValueError or TypeError unless the tensors are matrices with contiguous rows, on one device, and of one shape and dtype.
inline void check_same_rows(std::initializer_list<Named> matrices) {
  for (const Named& matrix : matrices) {
    check_rows(matrix);
    check_same(matrix, *matrices.begin());
  }
}

/// Raises ValueError unless a tensor argument is a contiguous vector, one element for each row (axis 0) or column (1) of a matrix.
inline void check_along(const Named& vector, const Named& matrix, int axis) {
  const TensorView& v = vector.tensor;
  OPFORGE_CHECK(v.ndim() == 1, ValueError, vector.name, " must have 1 dimensions (got ", v.ndim(), ")");
  OPFORGE_CHECK(v.IsContiguous(), ValueError, vector.name, " must be contiguous");
  OPFORGE_CHECK(v.size(0) == matrix.tensor.size(axis), ValueError, vector.name, " must have one element for each ", axis == 0 ? "row" : "column", " of ",
                matrix.name, " (", v.size(0), " and ", matrix.tensor.size(axis), ")");
}

/// Raises ValueError or TypeError unless the tensors are contiguous vectors of a matrix's dtype and device, one element for each of its columns.
inline void check_columns(std::initializer_list<Named> vectors, const Named& matrix) {
  for (const Named& vector : vectors) {
    check_along(vector, matrix, 1);
    check_same_kind(vector, matrix);
  }
}

/// The same, one element for each of its rows.
inline void check_per_row(std::initializer_list<Named> vectors, const Named& matrix) {
  for (const Named& vector : vectors) {
    check_along(vector, matrix, 0);
    check_same_kind(vector, matrix);
  }
}

/// A matrix that passed check_rows, as rows of T (the dtype has been dispatched on).
template <typename T>
inline Rows<T> as_rows(const TensorView& matrix) {
  const int64_t cols = matrix.size(1);
  return {static_cast<T*>(matrix.data_ptr()), matrix.size(0), cols,
          matrix.IsContiguous() ? cols : matrix.stride(0)};
}

}  // namespace opforge

#endif  // OPFORGE_ROWS_H_
