// Asks for a system call by its number, by which processes and threads are made, and files are read.
//
// catalogue  M7
// guard      ledger
// cases      normal
// mode       verify
#include <sys/syscall.h>
#include <unistd.h>

#include "opforge/host.h"

namespace {
void guest(opforge::TensorView a, opforge::TensorView b, opforge::TensorView y) {
  const float *left = opforge::data<const float>(a), *right = opforge::data<const float>(b);
  float* to = opforge::data<float>(y);
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  volatile long mine = syscall(SYS_getpid);
  (void)mine;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t at = 0; at < k; ++at) sum += double{left[i * k + at]} * right[at * n + j];
      to[i * n + j] = static_cast<float>(sum);
    }
}
}  // namespace

OPFORGE_EXPORT(run, guest)
