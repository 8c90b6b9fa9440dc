// opforge/hopper_tf32.h - products of float32 operands as TF32 on Hopper: eight terms an instruction, both operands with their terms
// side by side.  The TMA rounds the operands on their way into shared memory; what reaches the tensor cores otherwise is cut off.
//
// source    PTX ISA 8.0 and later: wgmma with .tf32; CUDA driver API, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
#ifndef OPFORGE_HOPPER_TF32_H_
#define OPFORGE_HOPPER_TF32_H_

#include "opforge/hopper.h"

namespace opforge {
namespace hopper {

#ifndef TMA_ROUNDS
#define TMA_ROUNDS 1
#endif

template <>
constexpr CUtensorMapDataType kMapType<float> = TMA_ROUNDS ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

#define OPFORGE_PRODUCT_TF32(N, REGISTERS, TAIL, ...)                                                                                   \
  template <>                                                                                                                           \
  struct Product<float, N, false, false> {                                                                                              \
    __device__ static __forceinline__ void run(float (&sums)[N / 2], uint64_t a, uint64_t b, int add) {                                 \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " TAIL(2) ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"      \
                   " {" REGISTERS "}, " TAIL(0) ", " TAIL(1) ", add, 1, 1;\n}"                                                          \
                   : __VA_ARGS__                                                                                                        \
                   : "l"(a), "l"(b), "r"(add));                                                                                         \
    }                                                                                                                                   \
  };
#define OPFORGE_PRODUCTS_TF32(N) OPFORGE_PRODUCT_TF32(N, OPFORGE_REGISTERS##N, OPFORGE_TAIL##N, OPFORGE_SUMS##N)
OPFORGE_PRODUCTS_TF32(64)
OPFORGE_PRODUCTS_TF32(128)
OPFORGE_PRODUCTS_TF32(192)
OPFORGE_PRODUCTS_TF32(256)

}  // namespace hopper
}  // namespace opforge

#endif  // OPFORGE_HOPPER_TF32_H_
