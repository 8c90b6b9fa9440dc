// opforge/emulator/intrinsics.h - CUDA's functions: barriers, shuffles, atomics, arithmetic, half and bfloat16.
//
// Part of opforge/emulator/execution.h, which alone includes it.

// ---------------------------------------------------------------------------
// Barriers, fences, votes, shuffles
// ---------------------------------------------------------------------------

#define OPFORGE_EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(OPFORGE_EMU_HERE) { ::opforge::emu::wait_block({file, line}); }
inline int __syncthreads_count(int predicate, OPFORGE_EMU_HERE) {
  ::opforge::emu::Block* block = ::opforge::emu::self()->block;
  block->count_now += predicate != 0;
  ::opforge::emu::wait_block({file, line});
  return static_cast<int>(block->count_result);
}
inline int __syncthreads_or(int predicate, OPFORGE_EMU_HERE) {
  return __syncthreads_count(predicate, file, line) != 0;
}
inline int __syncthreads_and(int predicate, OPFORGE_EMU_HERE) {
  return __syncthreads_count(!predicate, file, line) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, OPFORGE_EMU_HERE) {
  ::opforge::emu::warp_exchange("__syncwarp", mask, nullptr, 0, {file, line});
}
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ::opforge::emu::spin_hint();
}
inline void __threadfence_system() { __threadfence(); }
inline void __nanosleep(unsigned) { ::opforge::emu::yield_now(); }
inline unsigned __activemask() { return ::opforge::emu::self()->warp->lanes; }

namespace opforge {
namespace emu {
// Value of `source` lane; the own value where the shuffle leaves its segment.
template <typename T>
inline T shuffle(const char* kind, unsigned mask, T value, int source, bool inside, Site site) {
  static_assert(sizeof(T) <= 16, "shuffles move at most 16 bytes here");
  const unsigned char* values = warp_exchange(kind, mask, &value, sizeof(T), site);
  if (inside) std::memcpy(&value, values + 16 * source, sizeof(T));
  return value;
}
}  // namespace emu
}  // namespace opforge

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = (lane & ~(width - 1)) | (source & (width - 1));
  return ::opforge::emu::shuffle("__shfl_sync", mask, value, from, true, {file, line});
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                         OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = lane ^ lane_mask;
  return ::opforge::emu::shuffle("__shfl_xor_sync", mask, value, from & 31,
                                 from < (lane & ~(width - 1)) + width, {file, line});
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = lane + static_cast<int>(delta);
  return ::opforge::emu::shuffle("__shfl_down_sync", mask, value, from & 31,
                                 from < (lane & ~(width - 1)) + width, {file, line});
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        OPFORGE_EMU_HERE) {
  const int lane = static_cast<int>(::opforge::emu::self()->lane);
  const int from = lane - static_cast<int>(delta);
  return ::opforge::emu::shuffle("__shfl_up_sync", mask, value, from & 31,
                                 from >= (lane & ~(width - 1)), {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, OPFORGE_EMU_HERE) {
  const int own = predicate != 0;
  const unsigned char* values =
      ::opforge::emu::warp_exchange("__ballot_sync", mask, &own, sizeof(own), {file, line});
  unsigned result = 0;
  const unsigned lanes = mask & ::opforge::emu::self()->warp->lanes;
  for (unsigned i = 0; i < 32; ++i)
    if ((lanes >> i & 1u) && values[16 * i] == 1) result |= 1u << i;
  return result;
}
inline int __any_sync(unsigned mask, int predicate, OPFORGE_EMU_HERE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, OPFORGE_EMU_HERE) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}

namespace opforge {
namespace emu {
template <typename T, typename Op>
inline T warp_fold(const char* kind, unsigned mask, T value, Op op, Site site) {
  const unsigned char* values = warp_exchange(kind, mask, &value, sizeof(T), site);
  const unsigned lanes = mask & self()->warp->lanes;
  bool first = true;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(lanes >> i & 1u)) continue;
    T other;
    std::memcpy(&other, values + 16 * i, sizeof(T));
    value = first ? other : op(value, other);
    first = false;
  }
  return value;
}
}  // namespace emu
}  // namespace opforge
#define OPFORGE_EMU_REDUCE(name, expression)                                           \
  template <typename T>                                                                \
  inline T name(unsigned mask, T value, OPFORGE_EMU_HERE) {                            \
    return ::opforge::emu::warp_fold(                                                  \
        #name, mask, value, [](T a, T b) -> T { return expression; }, {file, line});   \
  }
OPFORGE_EMU_REDUCE(__reduce_add_sync, a + b)
OPFORGE_EMU_REDUCE(__reduce_min_sync, a < b ? a : b)
OPFORGE_EMU_REDUCE(__reduce_max_sync, a > b ? a : b)
OPFORGE_EMU_REDUCE(__reduce_and_sync, a & b)
OPFORGE_EMU_REDUCE(__reduce_or_sync, a | b)
OPFORGE_EMU_REDUCE(__reduce_xor_sync, a ^ b)

// ---------------------------------------------------------------------------
// Atomics (blocks may run on several host threads)
// ---------------------------------------------------------------------------

namespace opforge {
namespace emu {
template <std::size_t Bytes>
struct Bits;
template <>
struct Bits<2> { using type = uint16_t; };
template <>
struct Bits<4> { using type = uint32_t; };
template <>
struct Bits<8> { using type = uint64_t; };

template <typename T, typename Op>
inline T atomic_update(T* address, Op op) {
  using B = typename Bits<sizeof(T)>::type;
  B* bits = reinterpret_cast<B*>(address);
  B old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const T before = ::opforge::detail::bit_cast<T>(old);
    const T after = op(before);
    if (__atomic_compare_exchange_n(bits, &old, ::opforge::detail::bit_cast<B>(after), false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return before;
  }
}
template <typename T>
struct Identity { using type = T; };
template <typename T>
using identity_t = typename Identity<T>::type;
}  // namespace emu
}  // namespace opforge

#define OPFORGE_EMU_ATOMIC(name, expression)                                         \
  template <typename T>                                                              \
  inline T name(T* address, ::opforge::emu::identity_t<T> b) {                       \
    return ::opforge::emu::atomic_update(address, [b](T a) -> T { return expression; }); \
  }
OPFORGE_EMU_ATOMIC(atomicAdd, T(a + b))
OPFORGE_EMU_ATOMIC(atomicSub, T(a - b))
OPFORGE_EMU_ATOMIC(atomicMax, (a > b ? a : b))
OPFORGE_EMU_ATOMIC(atomicMin, (a < b ? a : b))
OPFORGE_EMU_ATOMIC(atomicAnd, (a & b))
OPFORGE_EMU_ATOMIC(atomicOr, (a | b))
OPFORGE_EMU_ATOMIC(atomicXor, (a ^ b))
OPFORGE_EMU_ATOMIC(atomicInc, (a >= b ? T(0) : T(a + 1)))
OPFORGE_EMU_ATOMIC(atomicDec, (a == T(0) || a > b ? b : T(a - 1)))
template <typename T>
inline T atomicExch(T* address, ::opforge::emu::identity_t<T> value) {
  ::opforge::emu::spin_hint();
  return ::opforge::emu::atomic_update(address, [value](T) -> T { return value; });
}
template <typename T>
inline T atomicCAS(T* address, ::opforge::emu::identity_t<T> compare,
                   ::opforge::emu::identity_t<T> value) {
  ::opforge::emu::spin_hint();
  return ::opforge::emu::atomic_update(
      address, [compare, value](T a) -> T { return a == compare ? value : a; });
}

// ---------------------------------------------------------------------------
// Arithmetic intrinsics
// ---------------------------------------------------------------------------

template <typename T>
inline T __ldg(const T* p) { return *p; }
template <typename T>
inline T __ldcs(const T* p) { return *p; }
template <typename T>
inline T __ldcg(const T* p) { return *p; }
template <typename T>
inline T __ldca(const T* p) { return *p; }
template <typename T>
inline void __stcs(T* p, ::opforge::emu::identity_t<T> value) { *p = value; }
template <typename T>
inline void __stcg(T* p, ::opforge::emu::identity_t<T> value) { *p = value; }

using std::max;
using std::min;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __int_as_float(int x) { return ::opforge::detail::bit_cast<float>(x); }
inline int __float_as_int(float x) { return ::opforge::detail::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return ::opforge::detail::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return ::opforge::detail::bit_cast<unsigned>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }

// ---------------------------------------------------------------------------
// float16 and bfloat16 under CUDA's names
// ---------------------------------------------------------------------------

using __half = ::opforge::Float16;
using half = __half;
using __nv_bfloat16 = ::opforge::BFloat16;
using nv_bfloat16 = __nv_bfloat16;
inline float __half2float(__half v) { return v; }
inline __half __float2half(float v) { return __half(v); }
inline __half __float2half_rn(float v) { return __half(v); }
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __half __ushort_as_half(unsigned short v) { __half r; r.bits = v; return r; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) {
  __nv_bfloat16 r;
  r.bits = v;
  return r;
}

#define OPFORGE_EMU_PAIR(T, T2, to_float2, from_float2, from_floats, pair, low, high, low_f, high_f) \
  struct __align__(4) T2 {                                                                  \
    T x, y;                                                                                 \
    T2() = default;                                                                         \
    T2(T a, T b) : x(a), y(b) {}                                                            \
  };                                                                                        \
  inline float2 to_float2(T2 v) { return {float(v.x), float(v.y)}; }                        \
  inline T2 from_float2(float2 v) { return T2(T(v.x), T(v.y)); }                            \
  inline T2 from_floats(float a, float b) { return T2(T(a), T(b)); }                        \
  inline T2 pair(T a, T b) { return T2(a, b); }                                             \
  inline T low(T2 v) { return v.x; }                                                        \
  inline T high(T2 v) { return v.y; }                                                       \
  inline float low_f(T2 v) { return v.x; }                                                  \
  inline float high_f(T2 v) { return v.y; }                                                 \
  inline T2 __hadd2(T2 a, T2 b) { return T2(T(float(a.x) + float(b.x)), T(float(a.y) + float(b.y))); } \
  inline T2 __hmul2(T2 a, T2 b) { return T2(T(float(a.x) * float(b.x)), T(float(a.y) * float(b.y))); } \
  inline T2 __hfma2(T2 a, T2 b, T2 c) {                                                     \
    return T2(T(std::fma(float(a.x), float(b.x), float(c.x))),                              \
              T(std::fma(float(a.y), float(b.y), float(c.y))));                             \
  }                                                                                         \
  inline T __hadd(T a, T b) { return T(float(a) + float(b)); }                              \
  inline T __hsub(T a, T b) { return T(float(a) - float(b)); }                              \
  inline T __hmul(T a, T b) { return T(float(a) * float(b)); }                              \
  inline T __hdiv(T a, T b) { return T(float(a) / float(b)); }                              \
  inline T __hfma(T a, T b, T c) { return T(std::fma(float(a), float(b), float(c))); }      \
  inline T __hmax(T a, T b) { return T(std::fmax(float(a), float(b))); }                    \
  inline T __hmin(T a, T b) { return T(std::fmin(float(a), float(b))); }                    \
  inline bool __hgt(T a, T b) { return float(a) > float(b); }                               \
  inline bool __hlt(T a, T b) { return float(a) < float(b); }
OPFORGE_EMU_PAIR(__half, __half2, __half22float2, __float22half2_rn, __floats2half2_rn,
                 __halves2half2, __low2half, __high2half, __low2float, __high2float)
OPFORGE_EMU_PAIR(__nv_bfloat16, __nv_bfloat162, __bfloat1622float2, __float22bfloat162_rn,
                 __floats2bfloat162_rn, __halves2bfloat162, __low2bfloat16, __high2bfloat16,
                 __low2float, __high2float)
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;
