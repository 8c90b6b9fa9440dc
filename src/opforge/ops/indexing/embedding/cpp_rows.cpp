// Index by index, a row copied as it is.
//
// moves     an index, and a row in and out: the least possible
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <algorithm>

#include "opforge/indexing/checks.h"
#include "opforge/host.h"

namespace {

template <typename T>
void pick(const opforge::TensorView& weight, const int64_t* indices, T* y, int64_t count) {
  const int64_t vocab = weight.size(0), dim = weight.size(1), stride = weight.stride(0);
  const T* table = opforge::data<const T>(weight);
  opforge::parallel_for(0, count, (1 << 15) / (dim + 1) + 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t index = indices[i];
      if (index >= 0 && index < vocab) {
        std::copy_n(table + index * stride, dim, y + i * dim);
      } else {  // no row has such an index: there is no answer
        std::fill_n(y + i * dim, dim, opforge::store_from_float<T>(NAN));
      }
    }
  });
}

void embedding(opforge::TensorView weight, opforge::TensorView indices, opforge::TensorView y, int64_t) {
  opforge::check_embedding({"weight", weight}, {"indices", indices}, {"y", y});
  OPFORGE_DISPATCH_DTYPE(weight, T,
                         pick<T>(weight, opforge::data<const int64_t>(indices), opforge::data<T>(y), indices.numel()));
}

}  // namespace

OPFORGE_EXPORT(run, embedding)
