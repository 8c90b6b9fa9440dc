// Row by row. What is not given arrives as an empty std::optional, and is a null pointer in the loop.
#include <optional>

#include "opforge/host.h"

namespace {

template <typename T>
void optional_affine(const T* x, const T* weight, const T* bias, T* y, int64_t rows, int64_t cols) {
  const int64_t grain = (1 << 15) / (cols + 1) + 1;  // rows that are worth a thread
  opforge::parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        float v = opforge::load_as_float(x[r * cols + c]);
        if (weight) v *= opforge::load_as_float(weight[c]);
        if (bias) v += opforge::load_as_float(bias[c]);
        y[r * cols + c] = opforge::store_from_float<T>(v);
      }
  });
}

// The data of a vector of x's dtype and width, or null where it is not given.
template <typename T>
const T* values(const std::optional<opforge::TensorView>& given, const opforge::TensorView& x) {
  if (!given.has_value()) return nullptr;
  OPFORGE_CHECK_SAME_DTYPE(x, (*given));
  OPFORGE_CHECK_CONTIGUOUS((*given));
  OPFORGE_CHECK(given->numel() == x.size(1), ValueError, "it must have one value for each column of x");
  return opforge::data<const T>(*given);
}

void run(opforge::TensorView x, std::optional<opforge::TensorView> weight, std::optional<opforge::TensorView> bias,
         opforge::TensorView y) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_DISPATCH_DTYPE(x, T, optional_affine<T>(opforge::data<const T>(x), values<T>(weight, x), values<T>(bias, x),
                                              opforge::data<T>(y), x.size(0), x.size(1)));
}

}  // namespace

OPFORGE_EXPORT(run, run)
