// opforge/attention/register_product.h - warpgroup products whose first operand lies in registers: P of attention times V.
#ifndef OPFORGE_ATTENTION_REGISTER_PRODUCT_H_
#define OPFORGE_ATTENTION_REGISTER_PRODUCT_H_

#include "opforge/arch/hopper.h"

namespace opforge {
namespace attention {

/// sums += a * b: a is 64 x 16 in four registers of each thread (rows t % 32 / 4 and + 8 of the warp's sixteen, columns t % 4 * 2 and + 8),
/// b is 16 x N in shared memory with its rows along N.
template <typename T, int N>
struct RegisterProduct;

#define OPFORGE_REGISTER_PRODUCT(T, NAME, N, REGISTERS, A, B, ...)                                                               \
  template <>                                                                                                                    \
  struct RegisterProduct<T, N> {                                                                                                 \
    __device__ static __forceinline__ void run(float (&sums)[N / 2], const Pair* a, uint64_t b) {                                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" REGISTERS "}, " A ", " B ", 1, 1, 1, 1;" \
                   : __VA_ARGS__                                                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                        \
    }                                                                                                                            \
  };
#define OPFORGE_REGISTER_PRODUCTS(T, NAME)                                                                                             \
  OPFORGE_REGISTER_PRODUCT(T, NAME, 64, OPFORGE_REGISTERS64, "{%32, %33, %34, %35}", "%36", OPFORGE_SUMS64)                            \
  OPFORGE_REGISTER_PRODUCT(T, NAME, 128, OPFORGE_REGISTERS128, "{%64, %65, %66, %67}", "%68", OPFORGE_SUMS128)
OPFORGE_REGISTER_PRODUCTS(half_t, "f16")
OPFORGE_REGISTER_PRODUCTS(bfloat16_t, "bf16")

}  // namespace attention
}  // namespace opforge

#endif  // OPFORGE_ATTENTION_REGISTER_PRODUCT_H_
