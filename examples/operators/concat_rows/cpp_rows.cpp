// Row by row: one copy for each matrix of the list.
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <cstring>

#include "opforge/abi/lists.h"
#include "opforge/host.h"

namespace {

void run(opforge::TensorList xs, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(y);
  const int64_t rows = y.size(0), size = y.dtype().bits / 8;
  int64_t total = 0;
  for (const opforge::TensorView& x : xs) {
    OPFORGE_CHECK_SAME_DTYPE(x, y);
    OPFORGE_CHECK(x.size(0) == rows, ValueError, "all must have the rows of y");
    OPFORGE_CHECK(x.size(1) < 2 || x.stride(1) == 1, ValueError, "rows must be contiguous");
    total += x.size(1);
  }
  OPFORGE_CHECK(total == y.size(1), ValueError, "the widths must add up to that of y");
  const int64_t grain = (1 << 16) / (total + 1) + 1;  // rows that are worth a thread
  opforge::parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      char* to = static_cast<char*>(y.data_ptr()) + r * total * size;
      for (const opforge::TensorView& x : xs) {
        const char* from = static_cast<const char*>(x.data_ptr()) + r * x.stride(0) * size;
        if (x.size(1)) std::memcpy(to, from, x.size(1) * size);
        to += x.size(1) * size;
      }
    }
  });
}

}  // namespace

OPFORGE_EXPORT_LISTS(run, run)
