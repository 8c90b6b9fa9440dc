// opforge/numeric/fp8.h - 8-bit floating point as storage, for .cpp and .cu files: E4M3 (largest value 448) and E5M2 (57344).
//
// Arithmetic is done in float; these types hold bits and convert, rounding to nearest even. A float beyond the largest value
// becomes the largest value (with its sign), as the GPU's own conversion does; NaN stays NaN. The code is free of branches and of
// float subnormals, so that loops over it vectorise. GPUs from sm_89 on have an instruction for two floats at once.
//
// source    OCP 8-bit floating point specification 1.0
#ifndef OPFORGE_FP8_H_
#define OPFORGE_FP8_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "opforge/ffi.h"

#if defined(__CUDACC__) && !defined(OPFORGE_EMULATE)
#define OPFORGE_FP8_INLINE __host__ __device__ __forceinline__
#else
#define OPFORGE_FP8_INLINE inline
#endif

namespace opforge {

/// What tells the two formats apart: bits of the mantissa, bias of the exponent, the largest finite value and its bits.
struct E4M3 {
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr float kLargest = 448.0f;
  static constexpr uint32_t kLargestBits = 0x7e, kNanBits = 0x7f;
  static constexpr bool kInfinity = false;  // all but one of the highest codes are numbers
};
struct E5M2 {
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr float kLargest = 57344.0f;
  static constexpr uint32_t kLargestBits = 0x7b, kNanBits = 0x7f;
  static constexpr bool kInfinity = true;
};

namespace fp8 {

OPFORGE_FP8_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
OPFORGE_FP8_INLINE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

/// The float of a code (exact).
template <typename Format>
OPFORGE_FP8_INLINE float widen(uint8_t code) {
  constexpr int kShift = 23 - Format::kMantissa;
  const uint32_t magnitude = code & 0x7fu, sign = static_cast<uint32_t>(code & 0x80u) << 24;
  // below the least exponent the code counts steps of one size
  const float step = float_of(static_cast<uint32_t>(127 - Format::kBias + 1 - Format::kMantissa) << 23);
  const uint32_t small = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * step);
  uint32_t bits = (magnitude << kShift) + (static_cast<uint32_t>(127 - Format::kBias) << 23);
  bits = magnitude < (1u << Format::kMantissa) ? small : bits;
  if (Format::kInfinity) {
    bits = magnitude >= 0x7cu ? 0x7f800000u | (magnitude & 3u) << 21 : bits;
  } else {
    bits = magnitude == 0x7fu ? 0x7fc00000u : bits;
  }
  return float_of(bits | sign);
}

/// The code of a float: to nearest even, saturating; NaN stays NaN.
template <typename Format>
OPFORGE_FP8_INLINE uint8_t narrow(float value) {
  constexpr int kShift = 23 - Format::kMantissa;
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  // at this number float's steps are those of the format's subnormals: the addition rounds
  const uint32_t anchor = static_cast<uint32_t>(127 - Format::kBias + 1 - Format::kMantissa + 23) << 23;
  const uint32_t small = bits_of(float_of(magnitude) + float_of(anchor)) - anchor;
  const uint32_t half = (1u << (kShift - 1)) - 1 + (magnitude >> kShift & 1u);
  const uint32_t normal = ((magnitude + half) >> kShift) - (static_cast<uint32_t>(127 - Format::kBias) << Format::kMantissa);
  uint32_t code = magnitude < static_cast<uint32_t>(127 - Format::kBias + 1) << 23 ? small : normal;
  code = magnitude >= bits_of(Format::kLargest) ? Format::kLargestBits : code;
  code = magnitude > 0x7f800000u ? Format::kNanBits : code;
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80u));
}

}  // namespace fp8

/// One stored element: converts from and to float.
template <typename F>
struct Float8 {
  using Format = F;
  uint8_t code;
  Float8() = default;
  OPFORGE_FP8_INLINE explicit Float8(float value) : code(fp8::narrow<F>(value)) {}
  OPFORGE_FP8_INLINE operator float() const { return fp8::widen<F>(code); }
};
using float8_e4m3_t = Float8<E4M3>;
using float8_e5m2_t = Float8<E5M2>;

/// Whether a tensor holds elements of such a type.
template <typename T>
inline bool holds_fp8(const TensorView& tensor) {
  constexpr int kCode = std::is_same<T, float8_e4m3_t>::value ? kDLFloat8_e4m3fn : kDLFloat8_e5m2;
  return tensor.dtype().code == kCode && tensor.dtype().bits == 8 && tensor.dtype().lanes == 1;
}

/// Runs the statement with `T` naming the element type of the tensor: float8_e4m3_t or float8_e5m2_t. Anything else raises TypeError.
#define OPFORGE_DISPATCH_FP8(tensor, T, ...)                                                                                \
  do {                                                                                                                      \
    if (::opforge::holds_fp8<::opforge::float8_e4m3_t>(tensor)) {                                                           \
      using T = ::opforge::float8_e4m3_t;                                                                                   \
      __VA_ARGS__;                                                                                                          \
    } else if (::opforge::holds_fp8<::opforge::float8_e5m2_t>(tensor)) {                                                    \
      using T = ::opforge::float8_e5m2_t;                                                                                   \
      __VA_ARGS__;                                                                                                          \
    } else {                                                                                                                \
      ::opforge::raise("TypeError", #tensor " must be float8_e4m3fn or float8_e5m2 (got ", ::opforge::dtype_name((tensor).dtype()), ")"); \
    }                                                                                                                       \
  } while (0)

}  // namespace opforge

#endif  // OPFORGE_FP8_H_
