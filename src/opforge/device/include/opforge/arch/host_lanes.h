// opforge/arch/host_lanes.h - stored elements as floats in vector registers on the CPU: two registers at a time, converted by the processor where it can.
#ifndef OPFORGE_HOST_LANES_H_
#define OPFORGE_HOST_LANES_H_

#include <cstdint>
#include <type_traits>

#include "opforge/host.h"

namespace opforge {

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
inline Wide widen(const float* source) { return {load_vector<Floats>(source), load_vector<Floats>(source + kLanes)}; }
inline void narrow(const Wide& values, float* target) {
  store_vector(target, values.first);
  store_vector(target + kLanes, values.second);
}
inline Wide widen(const Float16* source) { return {widen_lanes(source), widen_lanes(source + kLanes)}; }
inline void narrow(const Wide& values, Float16* target) {
  narrow_lanes(values.first, target);
  narrow_lanes(values.second, target + kLanes);
}

// The first `count` elements of those that a Wide holds; the others are 0.
template <typename T>
inline Wide widen_part(const T* source, int64_t count) {
  T whole[2 * kLanes] = {};
  __builtin_memcpy(whole, source, count * sizeof(T));
  return widen(whole);
}
template <typename T>
inline void narrow_part(const Wide& values, T* target, int64_t count) {
  T whole[2 * kLanes];
  narrow(values, whole);
  __builtin_memcpy(target, whole, count * sizeof(T));
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
    if (i < last) narrow_part(map_wide(f, widen_part(in + i, last - i)...), out + i, last - i);
  }
}

inline void add_to(Wide& sums, const Wide& values) {
  sums.first += values.first;
  sums.second += values.second;
}
inline Floats larger(const Floats& a, const Floats& b) { return b > a ? b : a; }
// All lanes into one: halves of a register first, then quarters, so that no addition waits for fifteen others.
template <typename F>
inline float across(Floats values, const F& f) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 4
  for (int step = kLanes / 2; step > 0; step /= 2) {
    typedef int Order __attribute__((vector_size(4 * kLanes)));
    Order order;
    for (int k = 0; k < kLanes; ++k) order[k] = k ^ step;
    values = f(values, __builtin_shuffle(values, order));
  }
  return values[0];
#else
  for (int step = kLanes / 2; step > 0; step /= 2) {
    Floats other = values;
    for (int k = 0; k < step; ++k) other[k] = values[k + step];
    values = f(values, other);
  }
  return values[0];
#endif
}
inline void raise_to(Wide& tops, const Wide& values) {
  tops = {larger(tops.first, values.first), larger(tops.second, values.second)};
}

// Values of the lanes that the first `count` elements of T went to, `other` in the rest: which lanes those are depends on T.
template <typename T>
inline Wide only_first(const Wide& values, int64_t count, float other) {
  T ones[2 * kLanes];
  for (T& one : ones) one = T(1.0f);
  const Wide taken = widen_part(ones, count);
  const Floats rest = Floats{} + other;
  return {taken.first > 0.0f ? values.first : rest, taken.second > 0.0f ? values.second : rest};
}

}  // namespace detail

/// out[i] = f(in[i]...) for i in [0, n), on one thread; f as in map of elementwise/host.h.
template <typename T, typename F, typename... In>
inline void map_row(int64_t n, T* out, const F& f, const In*... in) {
  detail::map_range(0, n, out, f, in...);
}

/// The sum of f(x[i], in[i]...) for i in [0, n); f as in map, and it may be asked about zeros. Four registers of sums run side by
/// side, which hides the latency of an addition. They are added up every 4096 elements, so that a rounding error grows with
/// 64 + n / 4096 terms.
template <typename F, typename T, typename... In>
inline float sum_map(int64_t n, const F& f, const T* x, const In*... in) {
  using detail::widen;
  constexpr int64_t kStep = 2 * detail::kLanes, kBlock = 4096;
  float total = 0.0f;
  for (int64_t i = 0; i < n;) {
    const int64_t end = n - i < kBlock ? n : i + kBlock;
    detail::Wide a = {}, b = {};
    for (; i + 2 * kStep <= end; i += 2 * kStep) {
      detail::add_to(a, detail::map_wide(f, widen(x + i), widen(in + i)...));
      detail::add_to(b, detail::map_wide(f, widen(x + i + kStep), widen(in + i + kStep)...));
    }
    for (; i + kStep <= end; i += kStep) detail::add_to(a, detail::map_wide(f, widen(x + i), widen(in + i)...));
    if (i < end) {
      const int64_t rest = end - i;
      const detail::Wide last = detail::map_wide(f, detail::widen_part(x + i, rest), detail::widen_part(in + i, rest)...);
      detail::add_to(b, detail::only_first<T>(last, rest, 0.0f));
      i = end;
    }
    const detail::Floats both = (a.first + a.second) + (b.first + b.second);
    total += detail::across(both, [](const detail::Floats& a, const detail::Floats& b) { return a + b; });
  }
  return total;
}

/// Floats that keep_sum() writes for a row of n elements: whole registers.
inline int64_t kept_floats(int64_t n) { return n + 2 * detail::kLanes; }

/// The sum of f(x[i]) as sum_map has it, with the terms kept as floats in the order of the registers, for map_kept().
template <typename F, typename T>
inline float keep_sum(int64_t n, float* kept, const F& f, const T* x) {
  constexpr int64_t kStep = 2 * detail::kLanes;
  detail::Wide a = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const detail::Wide terms = detail::map_wide(f, detail::widen(x + i));
    detail::narrow(terms, kept + i);
    detail::add_to(a, terms);
  }
  if (i < n) {
    const detail::Wide terms = detail::only_first<T>(detail::map_wide(f, detail::widen_part(x + i, n - i)), n - i, 0.0f);
    detail::narrow(terms, kept + i);
    detail::add_to(a, terms);
  }
  return detail::across(a.first + a.second, [](const detail::Floats& p, const detail::Floats& q) { return p + q; });
}

/// out[i] = f(term i) for the n terms that keep_sum() kept.
template <typename F, typename T>
inline void map_kept(int64_t n, T* out, const F& f, const float* kept) {
  constexpr int64_t kStep = 2 * detail::kLanes;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) detail::narrow(detail::map_wide(f, detail::widen(kept + i)), out + i);
  if (i < n) detail::narrow_part(detail::map_wide(f, detail::widen(kept + i)), out + i, n - i);
}

/// The largest of n elements, -infinity for none; NaN is passed over.
template <typename T>
inline float largest(int64_t n, const T* x) {
  constexpr int64_t kStep = 2 * detail::kLanes;
  detail::Wide a = {detail::Floats{} - INFINITY, detail::Floats{} - INFINITY}, b = a;
  int64_t i = 0;
  for (; i + 2 * kStep <= n; i += 2 * kStep) {
    detail::raise_to(a, detail::widen(x + i));
    detail::raise_to(b, detail::widen(x + i + kStep));
  }
  for (; i + kStep <= n; i += kStep) detail::raise_to(a, detail::widen(x + i));
  if (i < n) detail::raise_to(b, detail::only_first<T>(detail::widen_part(x + i, n - i), n - i, -INFINITY));
  detail::raise_to(a, b);
  const detail::Floats both = detail::larger(a.first, a.second);
  return detail::across(both, detail::larger);
}

#if defined(__AVX512BF16__) && defined(__GNUC__) && !defined(__clang__)
/// As in host.h, by the processor itself: 32 at a time.
inline void convert_from_float(const float* __restrict__ source, BFloat16* __restrict__ target, int64_t n) {
  constexpr int64_t kStep = 2 * detail::kLanes;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) detail::narrow(detail::widen(source + i), target + i);
  if (i < n) detail::narrow_part(detail::widen_part(source + i, n - i), target + i, n - i);
}
#endif

}  // namespace opforge

#endif  // OPFORGE_HOST_LANES_H_
