// opforge/arch/packed.h - up to 16 bytes of stored elements in registers, as they came from memory.
//
// 16-bit elements stay two to a register until they are computed with; an array of them would take
// a register each.
#ifndef OPFORGE_PACKED_H_
#define OPFORGE_PACKED_H_

#include <cstring>

#include "opforge/device.h"

namespace opforge {

namespace detail {

// One or two elements out of a 32-bit word, and back.
template <typename T>
struct Word;
template <>
struct Word<float> {
  __device__ static __forceinline__ void unpack(uint32_t word, float* values) { values[0] = __uint_as_float(word); }
  __device__ static __forceinline__ uint32_t pack(const float* values) { return __float_as_uint(values[0]); }
};
template <>
struct Word<bfloat16_t> {
  __device__ static __forceinline__ void unpack(uint32_t word, float* values) {
    values[0] = __uint_as_float(word << 16);
    values[1] = __uint_as_float(word & 0xffff0000u);
  }
  __device__ static __forceinline__ uint32_t pack(const float* values) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[0], values[1]);
    uint32_t word;
    memcpy(&word, &pair, sizeof(word));
    return word;
  }
};
template <>
struct Word<half_t> {
  __device__ static __forceinline__ void unpack(uint32_t word, float* values) {
    __half2 pair;
    memcpy(&pair, &word, sizeof(pair));
    const float2 both = __half22float2(pair);
    values[0] = both.x;
    values[1] = both.y;
  }
  __device__ static __forceinline__ uint32_t pack(const float* values) {
    const __half2 pair = __floats2half2_rn(values[0], values[1]);
    uint32_t word;
    memcpy(&word, &pair, sizeof(word));
    return word;
  }
};

}  // namespace detail

/// N elements of T: 16 bytes, or a single element.
template <typename T, int N>
struct Packed {
  static_assert(N == 1 || sizeof(T) * N == 16, "a Packed is 16 bytes or one element");
  static constexpr int kWords = N == 1 ? 1 : 4;
  static constexpr int kPerWord = N / kWords;
  uint32_t words[kWords];

  /// Loads from global memory what no thread of this kernel writes; it may stay in the first-level cache.
  __device__ static __forceinline__ Packed load(const T* p) {
    Packed packed;
#ifdef OPFORGE_EMULATE
    packed.words[0] = 0;
    const Vec<T, N> vec = Vec<T, N>::load(p);
    memcpy(packed.words, &vec, sizeof(vec));
#else
    if constexpr (N > 1) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(p));
      packed.words[0] = v.x, packed.words[1] = v.y, packed.words[2] = v.z, packed.words[3] = v.w;
    } else if constexpr (sizeof(T) == 4) {
      packed.words[0] = __ldg(reinterpret_cast<const unsigned int*>(p));
    } else {
      packed.words[0] = __ldg(reinterpret_cast<const unsigned short*>(p));
    }
#endif
    return packed;
  }

  /// The same for what is read once. Stays where it is in the program, so that it runs ahead of what is computed meanwhile.
  /// It does not pass the first-level cache by: L1::no_allocate costs 5 to 9 % of softmax_backward on an H200.
  __device__ static __forceinline__ Packed load_once(const T* p) {
#ifdef OPFORGE_EMULATE
    return load(p);
#else
    Packed packed;
    if constexpr (N > 1) {
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(packed.words[0]), "=r"(packed.words[1]), "=r"(packed.words[2]), "=r"(packed.words[3])
                   : "l"(p));
    } else if constexpr (sizeof(T) == 4) {
      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(packed.words[0]) : "l"(p));
    } else {
      uint16_t bits;
      asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(p));
      packed.words[0] = bits;
    }
    return packed;
#endif
  }

  __device__ __forceinline__ void unpack(float (&values)[N]) const {
    if constexpr (N == 1) {
      float two[2];
      detail::Word<T>::unpack(words[0], two);
      values[0] = two[0];
    } else {
#pragma unroll
      for (int w = 0; w < kWords; ++w) detail::Word<T>::unpack(words[w], values + w * kPerWord);
    }
  }

  /// Rounds to nearest even.
  __device__ static __forceinline__ Packed pack(const float (&values)[N]) {
    Packed packed;
    if constexpr (N == 1) {
      const float two[2] = {values[0], 0.0f};
      packed.words[0] = detail::Word<T>::pack(two);
    } else {
#pragma unroll
      for (int w = 0; w < kWords; ++w) packed.words[w] = detail::Word<T>::pack(values + w * kPerWord);
    }
    return packed;
  }

  /// Stores what is not read again soon.
  __device__ __forceinline__ void store_once(T* p) const {
#ifdef OPFORGE_EMULATE
    Vec<T, N> vec;
    memcpy(&vec, words, sizeof(vec));
    vec.store(p);
#else
    if constexpr (N > 1) {
      __stcs(reinterpret_cast<uint4*>(p), make_uint4(words[0], words[1], words[2], words[3]));
    } else if constexpr (sizeof(T) == 4) {
      __stcs(reinterpret_cast<unsigned int*>(p), words[0]);
    } else {
      __stcs(reinterpret_cast<unsigned short*>(p), static_cast<unsigned short>(words[0]));
    }
#endif
  }
};

}  // namespace opforge

#endif  // OPFORGE_PACKED_H_
