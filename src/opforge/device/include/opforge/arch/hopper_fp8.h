// opforge/arch/hopper_fp8.h - what FP8 attention asks of Hopper beyond hopper_heads.h: boxes of bytes, 8-bit products with a left operand in registers.
//
// source    PTX ISA 8.0 and later: cp.async.bulk.tensor, wgmma (register fragments of m64nNk32), cvt to e4m3x2
#ifndef OPFORGE_HOPPER_FP8_H_
#define OPFORGE_HOPPER_FP8_H_

#include "opforge/arch/hopper_heads.h"

namespace opforge {
namespace hopper {

/// Describes [batch, heads, length, dim] of bytes to the TMA in boxes of `box_dim` by `box_rows`. Strides are multiples of 16.
inline CUtensorMap describe_bytes(const void* data, int64_t dim, int64_t length, int64_t heads, int64_t batch, int64_t row, int64_t head, int64_t entry, int box_dim,
                                  int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(row), static_cast<cuuint64_t>(head), static_cast<cuuint64_t>(entry)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_dim), static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status =
      tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   swizzle_of(box_dim), kPromotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  OPFORGE_CHECK(status == CUDA_SUCCESS, RuntimeError, "cuTensorMapEncodeTiled refuses ", batch, " x ", heads, " heads of ", length, " rows of ", dim,
                " bytes; rows ", row, ", heads ", head, ", entries ", entry, " apart (CUresult ", static_cast<int>(status), ")");
  return map;
}

/// Describes an operand in shared memory as `operand` does, with rows of 128, 64 or 32 bytes; groups of eight lie behind one another.
template <int kRowBytes>
__device__ __forceinline__ uint64_t swizzled_operand(uint32_t address) {
  constexpr uint64_t kKind = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(8 * kRowBytes >> 4) << 32 | kKind << 62;
}

// sums that an instruction makes anew: their registers are free until it is issued, while those that it adds to are taken from before
#define OPFORGE_MADE4(i) "=f"(sums[i]), "=f"(sums[i + 1]), "=f"(sums[i + 2]), "=f"(sums[i + 3])
#define OPFORGE_MADE16(i) OPFORGE_MADE4(i), OPFORGE_MADE4(i + 4), OPFORGE_MADE4(i + 8), OPFORGE_MADE4(i + 12)
#define OPFORGE_MADE64 OPFORGE_MADE16(0), OPFORGE_MADE16(16)
#define OPFORGE_MADE96 OPFORGE_MADE64, OPFORGE_MADE16(32)
#define OPFORGE_MADE128 OPFORGE_MADE96, OPFORGE_MADE16(48)
#define OPFORGE_MADE160 OPFORGE_MADE128, OPFORGE_MADE16(64)
#define OPFORGE_MADE192 OPFORGE_MADE160, OPFORGE_MADE16(80)

/// sums = a * b of 64 x 32 and 32 x N E4M3 numbers, both described.
template <int N>
struct Fp8Product;
#define OPFORGE_FP8_PRODUCT(N)                                                                                                            \
  template <>                                                                                                                             \
  struct Fp8Product<N> : Product<float8_e4m3_t, N, false, false> {                                                                \
    __device__ static __forceinline__ void begin(float (&sums)[N / 2], uint64_t a, uint64_t b) {                                          \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {"               \
                   OPFORGE_REGISTERS##N "}, " OPFORGE_TAIL##N(0) ", " OPFORGE_TAIL##N(1) ", add, 1, 1;\n}"                                \
                   : OPFORGE_MADE##N                                                                                                      \
                   : "l"(a), "l"(b));                                                                                                     \
    }                                                                                                                                     \
  };
OPFORGE_FP8_PRODUCT(64)
OPFORGE_FP8_PRODUCT(96)
OPFORGE_FP8_PRODUCT(128)
OPFORGE_FP8_PRODUCT(160)
OPFORGE_FP8_PRODUCT(192)

/// The same with a in registers; `run` adds to the sums if `add`.
template <int N>
struct Fp8ProductOfRegisters;
#define OPFORGE_LEFT8_64 "{%32, %33, %34, %35}, %36, add, 1, 1;\n}"
#define OPFORGE_LEFT8_128 "{%64, %65, %66, %67}, %68, add, 1, 1;\n}"
#define OPFORGE_FP8_PRODUCT_OF_REGISTERS(N)                                                                                                    \
  template <>                                                                                                                                  \
  struct Fp8ProductOfRegisters<N> {                                                                                                            \
    __device__ static __forceinline__ void run(float (&sums)[N / 2], const Pair (&a)[4], uint64_t b, int add) {                                \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " OPFORGE_ADD##N ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" \
                   OPFORGE_REGISTERS##N "}, " OPFORGE_LEFT8_##N                                                                                \
                   : OPFORGE_SUMS##N                                                                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                                            \
    }                                                                                                                                          \
  };
OPFORGE_FP8_PRODUCT_OF_REGISTERS(64)
OPFORGE_FP8_PRODUCT_OF_REGISTERS(128)

/// Four floats as E4M3 in one register; `a` has the lowest index.
__device__ __forceinline__ Pair pack_four(float a, float b, float c, float d) {
  Pair all;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}"
      : "=r"(all)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return all;
}

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_FP8_H_
