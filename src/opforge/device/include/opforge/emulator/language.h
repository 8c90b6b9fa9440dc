// opforge/emulator/language.h - CUDA's language on a CPU: qualifiers, built-in types and variables.
//
// Part of opforge/emulator/execution.h, which alone includes it.

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// At block scope thread_local implies static.  Each host thread runs one block at
// a time, so its copy is the block's shared memory.
#define __shared__ thread_local
#define __cluster_dims__(...) \
  static_assert(false, "opforge emulator: launch clusters with OPFORGE_LAUNCH_CLUSTERS (opforge/arch/groups.h)");

#define OPFORGE_EMU_VECTOR1(T, name) \
  struct name##1 { T x; };           \
  inline name##1 make_##name##1(T x) { return {x}; }
#define OPFORGE_EMU_VECTOR2(T, name, bytes)           \
  struct __align__(bytes) name##2 { T x, y; };        \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define OPFORGE_EMU_VECTOR3(T, name) \
  struct name##3 { T x, y, z; };     \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define OPFORGE_EMU_VECTOR4(T, name, bytes)           \
  struct __align__(bytes) name##4 { T x, y, z, w; };  \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define OPFORGE_EMU_VECTORS(T, name)                                              \
  OPFORGE_EMU_VECTOR1(T, name) OPFORGE_EMU_VECTOR2(T, name, 2 * sizeof(T))        \
  OPFORGE_EMU_VECTOR3(T, name)                                                    \
  OPFORGE_EMU_VECTOR4(T, name, (4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16))
OPFORGE_EMU_VECTORS(signed char, char)
OPFORGE_EMU_VECTORS(unsigned char, uchar)
OPFORGE_EMU_VECTORS(short, short)
OPFORGE_EMU_VECTORS(unsigned short, ushort)
OPFORGE_EMU_VECTORS(int, int)
OPFORGE_EMU_VECTORS(unsigned int, uint)
OPFORGE_EMU_VECTORS(long long, longlong)
OPFORGE_EMU_VECTORS(unsigned long long, ulonglong)
OPFORGE_EMU_VECTORS(float, float)
OPFORGE_EMU_VECTORS(double, double)

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
      : x(x_), y(y_), z(z_) {}
};

using cudaStream_t = void*;

#define threadIdx (::opforge::emu::self()->thread_index)
#define blockIdx (::opforge::emu::self()->block->block_index)
#define blockDim (::opforge::emu::self()->block->block_dim)
#define gridDim (::opforge::emu::self()->block->grid_dim)
constexpr int warpSize = 32;
