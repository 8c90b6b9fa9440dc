// opforge/elementwise_host.h - out[i] = f(a[i], b[i], ...) on the CPU, in float32, vectorised and in parallel.
#ifndef OPFORGE_ELEMENTWISE_HOST_H_
#define OPFORGE_ELEMENTWISE_HOST_H_

#include <type_traits>

#include "opforge/host.h"

namespace opforge {

/// Elements that are worth a thread of their own.
constexpr int64_t kElementwiseGrain = 32768;

namespace detail {

// 16-bit elements are widened, computed with and narrowed in registers: two at a time, of as
// many floats as the widest vector holds.
#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
struct Wide {
  Floats first, second;
};

template <typename V>
inline V load_vector(const void* source) {
  V v;
  __builtin_memcpy(&v, source, sizeof(v));
  return v;
}
template <typename V>
inline void store_vector(void* target, const V& v) {
  __builtin_memcpy(target, &v, sizeof(v));
}

#if defined(__AVX512BF16__) && defined(__GNUC__) && !defined(__clang__)
// The processor packs two registers of floats itself, in order, to nearest even; it takes subnormals for 0.
typedef short Words __attribute__((vector_size(32)));
typedef int Ints __attribute__((vector_size(64)));
inline Floats widen_lanes(const BFloat16* source) { return (Floats)(__builtin_ia32_pmovzxwd512_mask(load_vector<Words>(source), Ints{}, -1) << 16); }
inline Wide widen(const BFloat16* source) { return {widen_lanes(source), widen_lanes(source + kLanes)}; }
inline void narrow(const Wide& values, BFloat16* target) {
#if __GNUC__ >= 13
  store_vector(target, __builtin_ia32_cvtne2ps2bf16_v32bf(values.second, values.first));
#else
  store_vector(target, __builtin_ia32_cvtne2ps2bf16_v32hi(values.second, values.first));
#endif
}
#else
// Pairs of bfloat16 lie in the halves of a 32-bit word: even elements go into one register,
// odd ones into the other, which needs shifts and masks only.
inline Wide widen(const BFloat16* source) {
  const Bits pairs = load_vector<Bits>(source);
  return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000u)};
}
// The upper 16 bits hold the result, as in float_to_bfloat16_bits.
inline Bits rounded_to_bfloat16(Floats values) {
  const Bits bits = (Bits)values;
  const Bits nan = (Bits)((bits & 0x7fffffffu) > 0x7f800000u);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) | (nan & 0x7fff0000u);
}
inline void narrow(const Wide& values, BFloat16* target) {
  store_vector(target, (rounded_to_bfloat16(values.first) >> 16) | (rounded_to_bfloat16(values.second) & 0xffff0000u));
}
#endif

#ifdef __AVX512F__
typedef short Shorts __attribute__((vector_size(32)));
inline Floats widen_lanes(const Float16* source) {
  return __builtin_ia32_vcvtph2ps512_mask(load_vector<Shorts>(source), Floats{}, -1, 4);  // 4: the current rounding, not used
}
inline void narrow_lanes(Floats values, Float16* target) {
  store_vector(target, __builtin_ia32_vcvtps2ph512_mask(values, 0, Shorts{}, -1));  // 0: to nearest even
}
#elif defined(__F16C__)
inline Floats widen_lanes(const Float16* source) { return __builtin_ia32_vcvtph2ps256(load_vector<F16x8>(source)); }
inline void narrow_lanes(Floats values, Float16* target) { store_vector(target, __builtin_ia32_vcvtps2ph256(values, 0)); }
#else
inline Floats widen_lanes(const Float16* source) {
  Floats values;
  for (int k = 0; k < kLanes; ++k) values[k] = load_as_float(source[k]);
  return values;
}
inline void narrow_lanes(const Floats& values, Float16* target) {
  for (int k = 0; k < kLanes; ++k) target[k] = store_from_float<Float16>(values[k]);
}
#endif
inline Wide widen(const Float16* source) { return {widen_lanes(source), widen_lanes(source + kLanes)}; }
inline void narrow(const Wide& values, Float16* target) {
  narrow_lanes(values.first, target);
  narrow_lanes(values.second, target + kLanes);
}

template <typename F, typename... In>
inline void map_floats(int64_t n, float* out, const F& f, const In*... in) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = f(in[i]...);
}

// The loop over as many floats as a register holds becomes operations on registers.
template <typename F, typename... Lanes>
inline void map_lanes(Floats& result, const F& f, const Lanes&... lanes) {
  map_floats(kLanes, reinterpret_cast<float*>(&result), f, reinterpret_cast<const float*>(&lanes)...);
}
template <typename F, typename... Wides>
inline Wide map_wide(const F& f, const Wides&... wides) {
  Wide result;
  map_lanes(result.first, f, wides.first...);
  map_lanes(result.second, f, wides.second...);
  return result;
}

template <typename T, typename F, typename... In>
inline void map_range(int64_t first, int64_t last, T* out, const F& f, const In*... in) {
  if constexpr (std::is_same<T, float>::value) {
    map_floats(last - first, out + first, f, in + first...);
  } else {
    int64_t i = first;
    for (; i + 2 * kLanes <= last; i += 2 * kLanes) narrow(map_wide(f, widen(in + i)...), out + i);
    for (; i < last; ++i) out[i] = store_from_float<T>(f(load_as_float(in[i])...));
  }
}

}  // namespace detail

/// out[i] = f(in[i]...) for i in [0, n).  `f` takes and returns floats and has no branches
/// that a compiler cannot turn into selections.  out may be an input.
template <typename T, typename F, typename... In>
inline void map(int64_t n, T* out, const F& f, const In*... in) {
  parallel_for(0, n, kElementwiseGrain, [&](int64_t first, int64_t last) {
    detail::map_range(first, last, out, f, in...);
  });
}

}  // namespace opforge

#endif  // OPFORGE_ELEMENTWISE_HOST_H_
