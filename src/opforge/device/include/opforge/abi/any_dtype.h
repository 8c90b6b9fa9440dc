// opforge/abi/any_dtype.h - dispatch over every element type that tensors have, FP8 left out.
#ifndef OPFORGE_ABI_ANY_DTYPE_H_
#define OPFORGE_ABI_ANY_DTYPE_H_

#include <cstdint>

#include "opforge/ffi.h"

namespace opforge {

/// A dtype as one number: its kind and its bits.
constexpr int dtype_key(int code, int bits) { return code * 256 + bits; }

}  // namespace opforge

#define OPFORGE_DTYPE_CASE(code, bits, Type, T, ...)  \
  case ::opforge::dtype_key(code, bits): {            \
    using T = Type;                                   \
    __VA_ARGS__;                                      \
    break;                                            \
  }

/// Runs the statement with `T` naming the element type of the tensor: double, float, half_t, bfloat16_t, bool, uint8_t
/// or a signed whole number.  Anything else raises TypeError naming the argument.
#define OPFORGE_DISPATCH_ANY_DTYPE(tensor, T, ...)                                                     \
  do {                                                                                                 \
    const DLDataType opforge_dtype = (tensor).dtype();                                                 \
    switch (::opforge::dtype_key(opforge_dtype.code, opforge_dtype.bits)) {                            \
      OPFORGE_DTYPE_CASE(kDLFloat, 64, double, T, __VA_ARGS__)                                         \
      OPFORGE_DTYPE_CASE(kDLFloat, 32, float, T, __VA_ARGS__)                                          \
      OPFORGE_DTYPE_CASE(kDLFloat, 16, ::opforge::half_t, T, __VA_ARGS__)                              \
      OPFORGE_DTYPE_CASE(kDLBfloat, 16, ::opforge::bfloat16_t, T, __VA_ARGS__)                         \
      OPFORGE_DTYPE_CASE(kDLBool, 8, bool, T, __VA_ARGS__)                                             \
      OPFORGE_DTYPE_CASE(kDLUInt, 8, uint8_t, T, __VA_ARGS__)                                          \
      OPFORGE_DTYPE_CASE(kDLInt, 8, int8_t, T, __VA_ARGS__)                                            \
      OPFORGE_DTYPE_CASE(kDLInt, 16, int16_t, T, __VA_ARGS__)                                          \
      OPFORGE_DTYPE_CASE(kDLInt, 32, int32_t, T, __VA_ARGS__)                                          \
      OPFORGE_DTYPE_CASE(kDLInt, 64, int64_t, T, __VA_ARGS__)                                          \
      default:                                                                                         \
        ::opforge::raise("TypeError", #tensor " must be of a format of numbers, FP8 left out (got ",   \
                         ::opforge::dtype_name(opforge_dtype), ")");                                   \
    }                                                                                                  \
  } while (0)

#endif  // OPFORGE_ABI_ANY_DTYPE_H_
