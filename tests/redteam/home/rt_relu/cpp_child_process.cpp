// A forked child writes the answer after the call has returned.
//
// catalogue  D9
// guard      children
// cases      normal
// mode       verify
// lowered    own_processes ledger
#include <unistd.h>

#include "opforge/elementwise/host.h"

namespace {
void elsewhere(opforge::TensorView x, opforge::TensorView y) {
  const float* from = opforge::data<const float>(x);
  float* to = opforge::data<float>(y);
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] <= 0.0f ? 0.0f : from[i];
  if (fork() == 0) {
    sleep(20);
    _exit(0);
  }
}
}  // namespace

OPFORGE_EXPORT(run, elsewhere)
