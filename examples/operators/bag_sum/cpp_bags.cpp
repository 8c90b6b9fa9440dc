// Bag by bag: rows are added in a float of each column, and stored once.
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <algorithm>
#include <vector>

#include "opforge/host.h"

namespace {

template <typename T>
void bag_sum(opforge::TensorView table, const int64_t* indices, const int64_t* offsets, T* y, int64_t bags) {
  const int64_t d = table.size(1), stride = table.stride(0);
  const T* rows = opforge::data<const T>(table);
  opforge::parallel_for(0, bags, 64, [&](int64_t first, int64_t last) {
    std::vector<float> total(d);
    for (int64_t bag = first; bag < last; ++bag) {
      std::fill(total.begin(), total.end(), 0.0f);
      for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i)
        for (int64_t c = 0; c < d; ++c) total[c] += opforge::load_as_float(rows[indices[i] * stride + c]);
      for (int64_t c = 0; c < d; ++c) y[bag * d + c] = opforge::store_from_float<T>(total[c]);
    }
  });
}

void run(opforge::TensorView table, opforge::TensorView indices, opforge::TensorView offsets, opforge::TensorView y) {
  OPFORGE_CHECK_SAME_DTYPE(table, y);
  OPFORGE_CHECK(offsets.numel() == y.size(0) + 1, ValueError, "offsets must have one value more than y has bags");
  OPFORGE_CHECK(indices.size(0) < 2 || indices.stride(0) == 1, ValueError, "indices must be contiguous");
  OPFORGE_CHECK(offsets.size(0) < 2 || offsets.stride(0) == 1, ValueError, "offsets must be contiguous");
  OPFORGE_CHECK(table.size(1) < 2 || table.stride(1) == 1, ValueError, "rows of the table must be contiguous");
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_DISPATCH_DTYPE(table, T, bag_sum<T>(table, opforge::data<const int64_t>(indices),
                                              opforge::data<const int64_t>(offsets), opforge::data<T>(y), y.size(0)));
}

}  // namespace

OPFORGE_EXPORT(run, run)
