// opforge/numeric/fp8_device.h - the FP8 elements of numeric/fp8.h in device code: by the GPU's own conversion where it has one (sm_89 and later).
#ifndef OPFORGE_DEVICE_FP8_H_
#define OPFORGE_DEVICE_FP8_H_

#include "opforge/device.h"
#include "opforge/numeric/fp8.h"

#ifndef OPFORGE_EMULATE
#include <cuda_fp8.h>
#endif

namespace opforge {

namespace detail {
template <typename Format>
__device__ __forceinline__ Float8<Format> round_to_fp8(float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  Float8<Format> result;
  result.code = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, Format::kInfinity ? __NV_E5M2 : __NV_E4M3);
  return result;
#else
  return Float8<Format>(v);
#endif
}
template <typename Format>
__device__ __forceinline__ Vec<Float8<Format>, 2> round_two_to_fp8(float low, float high) {
  Vec<Float8<Format>, 2> two;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  const __nv_fp8x2_storage_t codes = __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, Format::kInfinity ? __NV_E5M2 : __NV_E4M3);
  two[0].code = static_cast<uint8_t>(codes & 0xff);
  two[1].code = static_cast<uint8_t>(codes >> 8);
#else
  two[0] = Float8<Format>(low);
  two[1] = Float8<Format>(high);
#endif
  return two;
}
}  // namespace detail

__device__ __forceinline__ float load_as_float(float8_e4m3_t v) { return v; }
__device__ __forceinline__ float load_as_float(float8_e5m2_t v) { return v; }

/// To nearest even; what is too large becomes the largest value, NaN stays NaN.
template <>
__device__ __forceinline__ float8_e4m3_t store_from_float<float8_e4m3_t>(float v) { return detail::round_to_fp8<E4M3>(v); }
template <>
__device__ __forceinline__ float8_e5m2_t store_from_float<float8_e5m2_t>(float v) { return detail::round_to_fp8<E5M2>(v); }

}  // namespace opforge

#endif  // OPFORGE_DEVICE_FP8_H_
