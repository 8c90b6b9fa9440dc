// opforge/rows.h - a tensor argument seen as rows, for kernels that work row by row.
#ifndef OPFORGE_ROWS_H_
#define OPFORGE_ROWS_H_

#include "opforge/ffi.h"

namespace opforge {

/// `rows` rows of `cols` neighbouring elements each; a row begins `stride` elements after the last.
template <typename T>
struct Rows {
  T* data;
  int64_t rows, cols, stride;
};

/// Checks that a tensor argument is a matrix whose rows are contiguous (their stride is free).
#define OPFORGE_CHECK_ROWS(tensor)                                                        \
  do {                                                                                    \
    OPFORGE_CHECK_NDIM(tensor, 2);                                                        \
    OPFORGE_CHECK((tensor).IsContiguous() || (tensor).size(1) == 1 ||                     \
                      (tensor).stride(1) == 1,                                            \
                  ValueError, #tensor " must have contiguous rows");                      \
  } while (0)

/// Checks that a tensor argument is a contiguous vector, one element for each column of another.
#define OPFORGE_CHECK_COLUMNS(vector, tensor)                                             \
  do {                                                                                    \
    OPFORGE_CHECK_NDIM(vector, 1);                                                        \
    OPFORGE_CHECK_CONTIGUOUS(vector);                                                     \
    OPFORGE_CHECK((vector).size(0) == (tensor).size(1), ValueError,                       \
                  #vector " must have one element for each column of " #tensor " (",      \
                  (vector).size(0), " and ", (tensor).size(1), ")");                      \
    OPFORGE_CHECK_SAME_DTYPE(vector, tensor);                                             \
  } while (0)

/// Checks that a tensor argument is a contiguous vector, one element for each row of another.
#define OPFORGE_CHECK_PER_ROW(vector, tensor)                                             \
  do {                                                                                    \
    OPFORGE_CHECK_NDIM(vector, 1);                                                        \
    OPFORGE_CHECK_CONTIGUOUS(vector);                                                     \
    OPFORGE_CHECK((vector).size(0) == (tensor).size(0), ValueError,                       \
                  #vector " must have one element for each row of " #tensor " (",         \
                  (vector).size(0), " and ", (tensor).size(0), ")");                      \
    OPFORGE_CHECK_SAME_DTYPE(vector, tensor);                                             \
  } while (0)

/// A matrix that passed OPFORGE_CHECK_ROWS, as rows of T (the dtype has been dispatched on).
template <typename T>
inline Rows<T> as_rows(const TensorView& matrix) {
  const int64_t cols = matrix.size(1);
  return {static_cast<T*>(matrix.data_ptr()), matrix.size(0), cols,
          matrix.IsContiguous() ? cols : matrix.stride(0)};
}

}  // namespace opforge

#endif  // OPFORGE_ROWS_H_
