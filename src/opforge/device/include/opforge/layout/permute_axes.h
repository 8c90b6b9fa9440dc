// opforge/layout/permute_axes.h - checks of tensors whose axes are exchanged, and what travels for an element: for .cu and .cpp files.
#ifndef OPFORGE_PERMUTE_AXES_H_
#define OPFORGE_PERMUTE_AXES_H_

#include <cstdint>
#include <type_traits>

#include "opforge/abi/checks.h"

namespace opforge {

/// The integer that travels for an element of `Bytes` bytes.
template <int Bytes>
using Bits = std::conditional_t<Bytes == 4, uint32_t, uint16_t>;

/// Runs the statement with `T` naming the integer that is as wide as the tensor's elements.
#define OPFORGE_DISPATCH_BITS(tensor, T, ...)                                                                            \
  do {                                                                                                                   \
    const int opforge_bits = (tensor).dtype().bits * (tensor).dtype().lanes;                                             \
    OPFORGE_CHECK(opforge_bits == 32 || opforge_bits == 16, TypeError, #tensor " must have elements of 16 or 32 bits"); \
    if (opforge_bits == 32) {                                                                                            \
      using T = ::opforge::Bits<4>;                                                                                      \
      __VA_ARGS__;                                                                                                       \
    } else {                                                                                                             \
      using T = ::opforge::Bits<2>;                                                                                      \
      __VA_ARGS__;                                                                                                       \
    }                                                                                                                    \
  } while (0)

/// Raises ValueError or TypeError unless y is contiguous and has the dtype, the device and the shape of x, which has `ndim` axes and is
/// contiguous too, with the axes `first` and `first` + 1 exchanged.
inline void check_exchanged(const TensorView& x, const TensorView& y, int ndim, int first) {
  OPFORGE_CHECK(x.ndim() == ndim && y.ndim() == ndim, ValueError, "x and y must have ", ndim, " dimensions (got ", x.ndim(), " and ", y.ndim(), ")");
  OPFORGE_CHECK(x.IsContiguous() && y.IsContiguous(), ValueError, "x and y must be contiguous");
  check_same_kind({"y", y}, {"x", x});
  for (int k = 0; k < ndim; ++k)
    OPFORGE_CHECK(y.size(k) == x.size(k == first ? first + 1 : k == first + 1 ? first : k), ValueError, "y must have the shape of x with axes ", first, " and ",
                  first + 1, " exchanged");
}

}  // namespace opforge

#endif  // OPFORGE_PERMUTE_AXES_H_
