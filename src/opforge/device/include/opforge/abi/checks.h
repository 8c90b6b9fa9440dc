// opforge/abi/checks.h - the checks that kernels begin with, for .cu and .cpp files.
#ifndef OPFORGE_CHECKS_H_
#define OPFORGE_CHECKS_H_

#include <initializer_list>

#include "opforge/ffi.h"

namespace opforge {

/// A tensor argument and the name it has in messages.
struct Named {
  const char* name;
  const TensorView& tensor;
};

/// Raises TypeError unless both have one dtype, ValueError unless they lie on one device.
inline void check_same_kind(const Named& argument, const Named& first) {
  const TensorView &a = argument.tensor, &b = first.tensor;
  OPFORGE_CHECK(same_dtype(a.dtype(), b.dtype()), TypeError, argument.name, " and ", first.name, " must have the same dtype (", dtype_name(a.dtype()), " and ",
                dtype_name(b.dtype()), ")");
  OPFORGE_CHECK(a.device().device_type == b.device().device_type && a.device().device_id == b.device().device_id, ValueError, argument.name, " and ",
                first.name, " must lie on the same device");
}

/// Raises ValueError unless both have one shape, and what check_same_kind raises.
inline void check_same(const Named& argument, const Named& first) {
  OPFORGE_CHECK(same_shape(argument.tensor, first.tensor), ValueError, argument.name, " and ", first.name, " must have the same shape");
  check_same_kind(argument, first);
}

/// Raises ValueError or TypeError unless the tensors are contiguous, on one device, and of one shape and dtype.
inline void check_same_layout(std::initializer_list<Named> arguments) {
  const Named& first = *arguments.begin();
  for (const Named& argument : arguments) {
    check_same(argument, first);
    OPFORGE_CHECK(argument.tensor.IsContiguous(), ValueError, argument.name, " must be contiguous");
  }
}

}  // namespace opforge

#endif  // OPFORGE_CHECKS_H_
