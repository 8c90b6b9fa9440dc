// opforge/numeric/half.h - storage types for float16 and bfloat16 on the host.
//
// Arithmetic is done in float; these types only hold bits and convert, rounding
// to nearest even.  Loops over the bfloat16 conversions vectorise; for float16 use
// convert_to_float and convert_from_float of host.h, or the registers of arch/host_lanes.h.
#ifndef OPFORGE_HALF_H_
#define OPFORGE_HALF_H_

#include <cstdint>
#include <cstring>

namespace opforge {

namespace detail {
template <typename To, typename From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
}  // namespace detail

/// bfloat16 bits to float (exact).
inline float bfloat16_bits_to_float(uint16_t bits) {
  return detail::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// float to bfloat16 bits, to nearest even; NaN stays NaN.
inline uint16_t float_to_bfloat16_bits(float value) {
  const uint32_t bits = detail::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fffu : rounded);
}

#if defined(__FLT16_MAX__) && (defined(__F16C__) || defined(__aarch64__))
#define OPFORGE_HAS_FLOAT16 1
/// float16 bits to float (exact).
inline float float16_bits_to_float(uint16_t bits) {
  return static_cast<float>(detail::bit_cast<_Float16>(bits));
}
/// float to float16 bits, to nearest even.
inline uint16_t float_to_float16_bits(float value) {
  return detail::bit_cast<uint16_t>(static_cast<_Float16>(value));
}
#else
/// float16 bits to float (exact).
inline float float16_bits_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  // 2^112 moves the exponent from float16's bias to float's; subnormals come out right.
  float value = detail::bit_cast<float>(magnitude << 13) * 0x1p112f;
  if (magnitude >= 0x7c00u) value = detail::bit_cast<float>((magnitude << 13) | 0x7f800000u);
  return detail::bit_cast<float>(detail::bit_cast<uint32_t>(value) | sign);
}
/// float to float16 bits, to nearest even.
inline uint16_t float_to_float16_bits(float value) {
  const uint32_t bits = detail::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the sum rounds at 2^-24
    result = detail::bit_cast<uint32_t>(detail::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    result = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(result | sign);
}
#endif

/// float16 as storage: converts from and to float.
struct Float16 {
  uint16_t bits;
  Float16() = default;
  Float16(float value) : bits(float_to_float16_bits(value)) {}  // NOLINT: implicit as in CUDA
  operator float() const { return float16_bits_to_float(bits); }
  Float16& operator+=(float v) { return *this = Float16(float(*this) + v); }
  Float16& operator-=(float v) { return *this = Float16(float(*this) - v); }
  Float16& operator*=(float v) { return *this = Float16(float(*this) * v); }
  Float16& operator/=(float v) { return *this = Float16(float(*this) / v); }
};

/// bfloat16 as storage: converts from and to float.
struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  BFloat16(float value) : bits(float_to_bfloat16_bits(value)) {}  // NOLINT: implicit as in CUDA
  operator float() const { return bfloat16_bits_to_float(bits); }
  BFloat16& operator+=(float v) { return *this = BFloat16(float(*this) + v); }
  BFloat16& operator-=(float v) { return *this = BFloat16(float(*this) - v); }
  BFloat16& operator*=(float v) { return *this = BFloat16(float(*this) * v); }
  BFloat16& operator/=(float v) { return *this = BFloat16(float(*this) / v); }
};

}  // namespace opforge

#endif  // OPFORGE_HALF_H_
