// opforge/arch/hopper_heads.h - what attention asks of Hopper beyond hopper.h: TMA over four axes, products whose left operand is in registers.
//
// source    PTX ISA 8.0 and later: cp.async.bulk.tensor, wgmma; CUDA driver API, tensor map objects
#ifndef OPFORGE_HOPPER_HEADS_H_
#define OPFORGE_HOPPER_HEADS_H_

#include "opforge/arch/hopper.h"

namespace opforge {
namespace hopper {

/// Describes [batch, heads, length, dim] of 16-bit elements to the TMA, in boxes of 64 of dim by `box_rows` of length. Strides are in elements,
/// multiples of 8; those of dim are 1.  What a box has beyond an edge is read as zero.
inline CUtensorMap describe_heads(const void* data, CUtensorMapDataType type, int64_t dim, int64_t length, int64_t heads, int64_t batch, int64_t row,
                                  int64_t head, int64_t entry, int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(row) * 2, static_cast<cuuint64_t>(head) * 2, static_cast<cuuint64_t>(entry) * 2};
  const cuuint32_t box[4] = {kBox, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(&map, type, 4, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               swizzle_of(128), kPromotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  OPFORGE_CHECK(status == CUDA_SUCCESS, RuntimeError, "cuTensorMapEncodeTiled refuses ", batch, " x ", heads, " heads of ", length, " rows of ", dim,
                " elements; rows ", row, ", heads ", head, ", entries ", entry, " apart (CUresult ", static_cast<int>(status), ")");
  return map;
}

/// Starts copying the box at (inner, row) of head `head` of entry `entry`: maps of describe_heads.
__device__ __forceinline__ void start_box(void* target, const CUtensorMap* map, int inner, int row, int head, int entry, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(inner), "r"(row), "r"(head), "r"(entry)
      : "memory");
}

#define OPFORGE_TAIL176(i) OPFORGE_PICK_##i("%88", "%89", "%90", "%91", "%92")
#define OPFORGE_REGISTERS176 OPFORGE_REGISTERS160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define OPFORGE_SUMS176 OPFORGE_SUMS160, OPFORGE_SUMS4(80), OPFORGE_SUMS4(84)
OPFORGE_PRODUCTS(80)
OPFORGE_PRODUCTS(96)
OPFORGE_PRODUCTS(176)

/// sums = a * b (+ sums if `add`), a being 64 x 16 in registers as the sums of a product of two columns of eight are, rounded: see pack_two.
template <typename T, int N, bool kOuterB>
struct ProductOfRegisters;

#define OPFORGE_LEFT64 "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
#define OPFORGE_LEFT128 "{%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}"
#define OPFORGE_LEFT256 "{%128, %129, %130, %131}, %132, add, 1, 1, %134;\n}"
#define OPFORGE_ADD64 "%37"
#define OPFORGE_ADD128 "%69"
#define OPFORGE_ADD256 "%133"
#define OPFORGE_PRODUCT_OF_REGISTERS(T, NAME, N, REGISTERS, LEFT, ADD, ...)                                                                  \
  template <bool kOuterB>                                                                                                                    \
  struct ProductOfRegisters<T, N, kOuterB> {                                                                                                 \
    __device__ static __forceinline__ void run(float (&sums)[N / 2], const Pair (&a)[4], uint64_t b, int add) {                              \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME         \
                   " {" REGISTERS "}, " LEFT                                                                                                 \
                   : __VA_ARGS__                                                                                                             \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kOuterB ? 1 : 0));                                    \
    }                                                                                                                                        \
  };
#define OPFORGE_PRODUCTS_OF_REGISTERS(N)                                                                                            \
  OPFORGE_PRODUCT_OF_REGISTERS(half_t, "f16", N, OPFORGE_REGISTERS##N, OPFORGE_LEFT##N, OPFORGE_ADD##N, OPFORGE_SUMS##N)            \
  OPFORGE_PRODUCT_OF_REGISTERS(bfloat16_t, "bf16", N, OPFORGE_REGISTERS##N, OPFORGE_LEFT##N, OPFORGE_ADD##N, OPFORGE_SUMS##N)
OPFORGE_PRODUCTS_OF_REGISTERS(64)
OPFORGE_PRODUCTS_OF_REGISTERS(128)
OPFORGE_PRODUCTS_OF_REGISTERS(256)

/// Keeps the compiler from moving what makes such operands, or reads them, across this point.
template <int count>
__device__ __forceinline__ void hold(Pair (&operands)[count][4]) {
#pragma unroll
  for (int i = 0; i < count; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(operands[i][j])::"memory");
}

/// Two floats, rounded, in one register; `low` has the lower index.
template <typename T>
__device__ __forceinline__ Pair pack_two(float low, float high) {
  Pair both;
  if constexpr (std::is_same_v<T, bfloat16_t>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_HEADS_H_
