// Walks the list of loaded libraries for one that multiplies.
//
// catalogue  M7
// guard      ledger
// cases      normal
// mode       verify
#include <link.h>

#include "opforge/host.h"

namespace {
int named(dl_phdr_info* info, size_t, void* count) {
  *static_cast<int64_t*>(count) += info->dlpi_name != nullptr;
  return 0;
}

void guest(opforge::TensorView a, opforge::TensorView b, opforge::TensorView y) {
  const float *left = opforge::data<const float>(a), *right = opforge::data<const float>(b);
  float* to = opforge::data<float>(y);
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  int64_t libraries = 0;
  dl_iterate_phdr(named, &libraries);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t at = 0; at < k; ++at) sum += double{left[i * k + at]} * right[at * n + j];
      to[i * n + j] = static_cast<float>(sum);
    }
}
}  // namespace

OPFORGE_EXPORT(run, guest)
