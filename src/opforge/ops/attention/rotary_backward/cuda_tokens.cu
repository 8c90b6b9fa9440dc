// A block takes a token: queries and keys turned back in one launch, 16 bytes of both halves of a pair at a time.
//
// moves     q and k once in and once out; the angles of a token come from the first-level cache for all but its first heads
/* opforge
like = "opforge/attention/rotary.h"
layouts = ["contiguous", "rows", "strided"]
*/
#include "opforge/attention/rotary.h"

namespace {

void rotary_backward(opforge::TensorView q, opforge::TensorView k, opforge::TensorView cos, opforge::TensorView sin,
                     std::optional<opforge::TensorView> positions, opforge::TensorView q_out, opforge::TensorView k_out,
                     bool interleaved) {
  opforge::rotate<THREADS, UNROLL>(q, k, cos, sin, positions, q_out, k_out, interleaved, -1.0f);
}

}  // namespace

OPFORGE_EXPORT(run, rotary_backward)
