// opforge/experts/checks.h - what routing and its gradient check of their arguments, on the CPU and on the GPU.
#ifndef OPFORGE_EXPERTS_CHECKS_H_
#define OPFORGE_EXPERTS_CHECKS_H_

#include "opforge/rows/view.h"

namespace opforge {

/// Raises ValueError or TypeError unless logits are rows of experts, and weights (float32) and places (int64) have k for each, in contiguous rows.
inline void check_routing(const Named& logits, const Named& weights, const Named& places, int64_t k) {
  check_rows(logits);
  const int64_t rows = logits.tensor.size(0), experts = logits.tensor.size(1);
  OPFORGE_CHECK(k >= 1 && k <= experts, ValueError, "k must be from 1 to the ", experts, " experts (got ", k, ")");
  for (const Named& each : {weights, places}) {
    check_rows(each);
    OPFORGE_CHECK(each.tensor.size(0) == rows && each.tensor.size(1) == k, ValueError, each.name, " must have ", k,
                  " elements for each row of ", logits.name);
  }
  OPFORGE_CHECK(float_kind(weights.tensor.dtype()) == FloatKind::kFloat32, TypeError, weights.name,
                " must be float32 (got ", dtype_name(weights.tensor.dtype()), ")");
  const DLDataType dtype = places.tensor.dtype();
  OPFORGE_CHECK(dtype.code == kDLInt && dtype.bits == 64, TypeError, places.name, " must be int64 (got ",
                dtype_name(dtype), ")");
}

}  // namespace opforge

#endif  // OPFORGE_EXPERTS_CHECKS_H_
