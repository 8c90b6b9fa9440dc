// opforge/indexing/checks.h - what embedding and its gradient check of their arguments, on the CPU and on the GPU.
#ifndef OPFORGE_INDEXING_CHECKS_H_
#define OPFORGE_INDEXING_CHECKS_H_

#include "opforge/abi/checks.h"

namespace opforge {

/// Raises ValueError or TypeError unless the table's rows [vocab, dim] are contiguous each, the indices a contiguous vector of int64, and there is a contiguous row of
/// as many elements for each of them.
inline void check_embedding(const Named& table, const Named& indices, const Named& rows) {
  const TensorView &weight = table.tensor, &y = rows.tensor;
  OPFORGE_CHECK(weight.ndim() == 2, ValueError, table.name, " must have 2 dimensions (got ", weight.ndim(), ")");
  OPFORGE_CHECK(weight.size(1) < 2 || weight.stride(1) == 1, ValueError, "rows of ", table.name, " must be contiguous");
  const DLDataType dtype = indices.tensor.dtype();
  OPFORGE_CHECK(dtype.code == kDLInt && dtype.bits == 64, TypeError, indices.name, " must be int64 (got ",
                dtype_name(dtype), ")");
  OPFORGE_CHECK(indices.tensor.ndim() == 1 && indices.tensor.IsContiguous(), ValueError, indices.name,
                " must be a contiguous vector");
  check_same_kind(rows, table);
  OPFORGE_CHECK(y.ndim() == 2 && y.size(0) == indices.tensor.size(0) && y.size(1) == weight.size(1) && y.IsContiguous(),
                ValueError, rows.name, " must be contiguous, with a row for each index, as wide as those of ",
                table.name);
}

}  // namespace opforge

#endif  // OPFORGE_INDEXING_CHECKS_H_
