// opforge/alike.h - the check that elementwise kernels begin with, for .cu and .cpp files.
#ifndef OPFORGE_ALIKE_H_
#define OPFORGE_ALIKE_H_

#include <initializer_list>

#include "opforge/ffi.h"

namespace opforge {

/// A tensor argument and the name it has in messages.
struct Named {
  const char* name;
  const TensorView& tensor;
};

/// Raises ValueError or TypeError unless the tensors are contiguous, on one device, and of one shape and dtype.
inline void check_alike(std::initializer_list<Named> arguments) {
  const Named& first = *arguments.begin();
  for (const Named& argument : arguments) {
    const TensorView& tensor = argument.tensor;
    OPFORGE_CHECK(same_shape(tensor, first.tensor), ValueError, argument.name, " and ", first.name, " must have the same shape");
    OPFORGE_CHECK(same_dtype(tensor.dtype(), first.tensor.dtype()), TypeError, argument.name, " and ", first.name, " must have the same dtype (",
                  dtype_name(tensor.dtype()), " and ", dtype_name(first.tensor.dtype()), ")");
    OPFORGE_CHECK(tensor.device().device_type == first.tensor.device().device_type && tensor.device().device_id == first.tensor.device().device_id, ValueError,
                  argument.name, " and ", first.name, " must lie on the same device");
    OPFORGE_CHECK(tensor.IsContiguous(), ValueError, argument.name, " must be contiguous");
  }
}

}  // namespace opforge

#endif  // OPFORGE_ALIKE_H_
