// Row by row, each element in its own format: a float64 is never a float32, a whole number never a float.
#include <type_traits>

#include "opforge/abi/any_dtype.h"
#include "opforge/host.h"

namespace {

// Whole numbers wrap, as in PyTorch and on GPUs; in C++ only unsigned ones may.
template <typename T>
T sum(T a, T b) {
  if constexpr (std::is_same<T, bool>::value) {
    return a || b;
  } else if constexpr (std::is_integral<T>::value) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else if constexpr (std::is_same<T, double>::value) {
    return a + b;
  } else {
    return opforge::store_from_float<T>(opforge::load_as_float(a) + opforge::load_as_float(b));
  }
}

template <typename T>
void masked_add(const T* x, const T* bias, const uint8_t* mask, T* y, int64_t rows, int64_t cols) {
  const int64_t grain = (1 << 15) / (cols + 1) + 1;  // rows that are worth a thread
  opforge::parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t i = r * cols + c;
        y[i] = mask[i] ? sum<T>(x[i], bias[c]) : x[i];
      }
  });
}

void run(opforge::TensorView x, opforge::TensorView bias, opforge::TensorView mask, opforge::TensorView y) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_SHAPE(x, mask);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  OPFORGE_CHECK(mask.dtype().code == kDLBool, TypeError, "mask must be bool");
  OPFORGE_CHECK(bias.numel() == x.size(1), ValueError, "bias must have one value for each column of x");
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(bias);
  OPFORGE_CHECK_CONTIGUOUS(mask);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_DISPATCH_ANY_DTYPE(x, T,
                             masked_add<T>(opforge::data<const T>(x), opforge::data<const T>(bias),
                                           opforge::data<const uint8_t>(mask), opforge::data<T>(y), x.size(0),
                                           x.size(1)));
}

}  // namespace

OPFORGE_EXPORT(run, run)
