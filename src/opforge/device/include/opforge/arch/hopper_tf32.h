// opforge/arch/hopper_tf32.h - products of float32 operands as TF32 on Hopper: eight terms an instruction, the first operand in registers.
//
// source    PTX ISA 8.0 and later: wgmma with .tf32; CUDA driver API, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
#ifndef OPFORGE_HOPPER_TF32_H_
#define OPFORGE_HOPPER_TF32_H_

#include "opforge/arch/hopper.h"

namespace opforge {
namespace hopper {

/// The TMA rounds float32 to the nearest TF32 on its way into shared memory.  What wgmma finds there otherwise, it cuts off: at 4096 x 4096 x 4096
/// that is 2.7 times the error, and 2.5 % slower, because the bits that do not count are moved all the same (one H200).
template <>
constexpr CUtensorMapDataType kMapType<float> = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;

/// sums = a * b (+ sums if `add`): a is 64 x 8 in registers, b 8 x N in shared memory, its terms side by side; sums as in Product.  Thread t
/// holds rows t / 32 * 16 + t % 32 / 4 (+ 8 for odd registers) and terms t % 4 (+ 4 from the third register on) of a.  They may not
/// change before the products are done.
template <int N>
struct ProductOfRegisters;

#define OPFORGE_PRODUCT_OF_REGISTERS(N, REGISTERS, A0, A1, A2, A3, B, ADD, ...)                                                         \
  template <>                                                                                                                           \
  struct ProductOfRegisters<N> {                                                                                                        \
    __device__ static __forceinline__ void run(float (&sums)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {                     \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"          \
                   " {" REGISTERS "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", add, 1, 1;\n}"                                           \
                   : __VA_ARGS__                                                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                                     \
    }                                                                                                                                   \
  };
OPFORGE_PRODUCT_OF_REGISTERS(64, OPFORGE_REGISTERS64, "%32", "%33", "%34", "%35", "%36", "%37", OPFORGE_SUMS64)
OPFORGE_PRODUCT_OF_REGISTERS(128, OPFORGE_REGISTERS128, "%64", "%65", "%66", "%67", "%68", "%69", OPFORGE_SUMS128)
OPFORGE_PRODUCT_OF_REGISTERS(192, OPFORGE_REGISTERS192, "%96", "%97", "%98", "%99", "%100", "%101", OPFORGE_SUMS192)
OPFORGE_PRODUCT_OF_REGISTERS(256, OPFORGE_REGISTERS256, "%128", "%129", "%130", "%131", "%132", "%133", OPFORGE_SUMS256)

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_TF32_H_
