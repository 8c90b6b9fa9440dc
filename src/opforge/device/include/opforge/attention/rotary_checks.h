// opforge/attention/rotary_checks.h - what rotary and its gradient check of their arguments, on the CPU and on the GPU.
#ifndef OPFORGE_ROTARY_CHECKS_H_
#define OPFORGE_ROTARY_CHECKS_H_

#include <optional>

#include "opforge/abi/checks.h"

namespace opforge {

/// Raises ValueError or TypeError unless queries and keys [batch, tokens, heads, dim], angles [places, half] and positions [batch, tokens] fit together.
inline void check_rotary(const TensorView& q, const TensorView& k, const TensorView& cos, const TensorView& sin,
                         const std::optional<TensorView>& positions, const TensorView& q_out, const TensorView& k_out) {
  OPFORGE_CHECK_NDIM(q, 4);
  OPFORGE_CHECK_NDIM(k, 4);
  check_same({"q_out", q_out}, {"q", q});
  check_same({"k_out", k_out}, {"k", k});
  check_same_kind({"k", k}, {"q", q});
  OPFORGE_CHECK_CONTIGUOUS(q_out);
  OPFORGE_CHECK_CONTIGUOUS(k_out);
  OPFORGE_CHECK(q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3), ValueError,
                "q and k must have the same tokens, and heads of one size");
  for (const Named& table : {Named{"cos", cos}, Named{"sin", sin}}) {
    OPFORGE_CHECK(table.tensor.ndim() == 2 && same_shape(table.tensor, cos), ValueError,
                  "cos and sin must be two matrices of one shape");
    OPFORGE_CHECK(float_kind(table.tensor.dtype()) == FloatKind::kFloat32, TypeError, table.name,
                  " must be float32 (got ", dtype_name(table.tensor.dtype()), ")");
  }
  OPFORGE_CHECK(cos.size(1) >= 1 && 2 * cos.size(1) <= q.size(3), ValueError, "twice the ", cos.size(1),
                " angles of a place must be 2 to ", q.size(3));
  if (!positions.has_value()) {
    OPFORGE_CHECK(q.size(1) <= cos.size(0), ValueError, "there are ", q.size(1), " tokens, and angles of ", cos.size(0),
                  " places: give positions");
    return;
  }
  const DLDataType dtype = positions->dtype();
  OPFORGE_CHECK(dtype.code == kDLInt && dtype.bits == 64, TypeError, "positions must be int64 (got ", dtype_name(dtype),
                ")");
  OPFORGE_CHECK(positions->ndim() == 2 && positions->size(0) == q.size(0) && positions->size(1) == q.size(1),
                ValueError, "positions must have a number for each token");
}

}  // namespace opforge

#endif  // OPFORGE_ROTARY_CHECKS_H_
