// opforge/loss/targets.h - checks of a vector of class indices, one for each row of scores.
#ifndef OPFORGE_TARGETS_H_
#define OPFORGE_TARGETS_H_

#include "opforge/rows/view.h"

namespace opforge {

/// Raises ValueError or TypeError unless a tensor argument is a contiguous vector of int64, one for each row of a matrix.
inline void check_targets(const Named& vector, const Named& matrix) {
  check_along(vector, matrix, 0);
  const DLDataType dtype = vector.tensor.dtype();
  OPFORGE_CHECK(dtype.code == kDLInt && dtype.bits == 64, TypeError, vector.name, " must be int64 (got ", dtype_name(dtype), ")");
}

}  // namespace opforge

#endif  // OPFORGE_TARGETS_H_
