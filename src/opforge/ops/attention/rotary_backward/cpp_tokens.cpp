// Token by token, queries and keys turned back by the same angles, which stay in the cache for all heads.
//
// moves     q and k once in and once out: the least possible
/* opforge
layouts = ["contiguous", "rows", "strided"]
*/
#include "opforge/attention/rotary_host.h"

namespace {

void rotary_backward(opforge::TensorView q, opforge::TensorView k, opforge::TensorView cos, opforge::TensorView sin,
                     std::optional<opforge::TensorView> positions, opforge::TensorView q_out, opforge::TensorView k_out,
                     bool interleaved) {
  opforge::rotate(q, k, cos, sin, positions, q_out, k_out, interleaved, -1.0f);
}

}  // namespace

OPFORGE_EXPORT(run, rotary_backward)
