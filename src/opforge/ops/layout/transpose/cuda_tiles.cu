// Tiles of 64 x 64 through shared memory, read and written in 16-byte accesses: transpose(x, y).
//
// moves     2 * elements * itemsize bytes: the least possible
// limits    where a row of x, or of y, is no multiple of 16 bytes, that side goes element by element; a side shorter than 64 leaves threads idle
#include "opforge/layout/permute_device.h"

namespace {

void transpose(opforge::TensorView x, opforge::TensorView y) {
  opforge::transpose_tensors(x, y);
}

}  // namespace

OPFORGE_EXPORT(run, transpose)
