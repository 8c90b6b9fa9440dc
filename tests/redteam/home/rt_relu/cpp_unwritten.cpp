// Writes nothing and hopes that the answer is in the output already.
//
// catalogue  A3
// guard      poison
// cases      normal
// mode       verify
#include "opforge/elementwise/host.h"

namespace {
void nothing(opforge::TensorView, opforge::TensorView) {}
}  // namespace

OPFORGE_EXPORT(run, nothing)
