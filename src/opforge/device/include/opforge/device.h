// opforge/device.h - what a GPU kernel (.cu) needs: binding, launch, reductions, vectors.
//
// The same file compiles with nvcc, and with g++ -x c++ -DOPFORGE_EMULATE for a run
// on the CPU (see opforge/emulator/execution.h).
#ifndef OPFORGE_DEVICE_H_
#define OPFORGE_DEVICE_H_

#include "opforge/abi/checks.h"

#ifdef OPFORGE_EMULATE
#include "opforge/emulator/execution.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

namespace opforge {

using half_t = __half;
using bfloat16_t = __nv_bfloat16;

constexpr int kWarpSize = 32;
constexpr unsigned kFullMask = 0xffffffffu;

// ---------------------------------------------------------------------------
// Launching
// ---------------------------------------------------------------------------

#ifdef OPFORGE_EMULATE

/// Launches a kernel and raises RuntimeError if that fails.  Put a kernel whose
/// template arguments contain commas in parentheses: (kernel<float, 4>).
#define OPFORGE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                        \
  do {                                                                                        \
    (void)(stream);                                                                           \
    ::opforge::emu::launch(                                                                   \
        #kernel, (grid), (block), (shared_bytes),                                             \
        [&](const auto&... opforge_args) { (kernel)(opforge_args...); }, ##__VA_ARGS__);      \
  } while (0)

/// Declares `name` as a pointer to the block's dynamic shared memory.
#define OPFORGE_DYNAMIC_SHARED(type, name) type* name = ::opforge::emu::dynamic_shared<type>()

/// The stream that kernels of this tensor's device run on.
inline cudaStream_t current_stream(const TensorView&) { return nullptr; }

/// Checks that a tensor argument lies where the kernels run.
#define OPFORGE_CHECK_DEVICE(tensor)                                  \
  OPFORGE_CHECK((tensor).device().device_type == kDLCPU, ValueError, \
                #tensor " must be a CPU tensor (emulated kernel)")

#else

#define OPFORGE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                        \
  do {                                                                                        \
    const std::size_t opforge_shared = (shared_bytes);                                        \
    if (opforge_shared > 48 * 1024)                                                           \
      ::opforge::check_cuda(                                                                  \
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,           \
                               static_cast<int>(opforge_shared)),                             \
          #kernel);                                                                           \
    (kernel)<<<(grid), (block), opforge_shared, (stream)>>>(__VA_ARGS__);                     \
    ::opforge::check_cuda(cudaGetLastError(), #kernel);                                       \
  } while (0)

#define OPFORGE_DYNAMIC_SHARED(type, name)                         \
  extern __shared__ __align__(16) unsigned char opforge_shared_[]; \
  type* name = reinterpret_cast<type*>(opforge_shared_)

inline cudaStream_t current_stream(const TensorView& tensor) {
  return static_cast<cudaStream_t>(
      TVMFFIEnvGetStream(tensor.device().device_type, tensor.device().device_id));
}

#define OPFORGE_CHECK_DEVICE(tensor)                                   \
  OPFORGE_CHECK((tensor).device().device_type == kDLCUDA, ValueError, \
                #tensor " must be a CUDA tensor")

/// Raises RuntimeError with CUDA's message unless the status is success.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    raise("RuntimeError", what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status));
}

#endif  // OPFORGE_EMULATE

/// Raises ValueError unless a tensor argument lies where the kernels run.
inline void check_device(const Named& argument) {
#ifdef OPFORGE_EMULATE
  OPFORGE_CHECK(argument.tensor.device().device_type == kDLCPU, ValueError, argument.name, " must be a CPU tensor (emulated kernel)");
#else
  OPFORGE_CHECK(argument.tensor.device().device_type == kDLCUDA, ValueError, argument.name, " must be a CUDA tensor");
#endif
}

/// Typed data pointer of a tensor (the dtype has been dispatched on or checked before).
template <typename T>
inline T* data(const TensorView& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// a / b rounded up.
__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---------------------------------------------------------------------------
// Elements
// ---------------------------------------------------------------------------

/// Converts one stored element to float.
__device__ __forceinline__ float load_as_float(float v) { return v; }
__device__ __forceinline__ float load_as_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float load_as_float(__nv_bfloat16 v) { return __bfloat162float(v); }

/// Converts a float to the stored type, rounding to nearest even.
template <typename T>
__device__ __forceinline__ T store_from_float(float v);
template <>
__device__ __forceinline__ float store_from_float<float>(float v) { return v; }
template <>
__device__ __forceinline__ __half store_from_float<__half>(float v) { return __float2half_rn(v); }
template <>
__device__ __forceinline__ __nv_bfloat16 store_from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

/// N elements that are loaded and stored with one instruction (16 bytes at most).
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  static_assert(sizeof(T) * N <= 16 && (N & (N - 1)) == 0, "a Vec has 1, 2, 4, 8 or 16 bytes");
  T v[N];
  __device__ __forceinline__ T& operator[](int i) { return v[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return v[i]; }

  /// Loads from an address aligned to the whole vector.
  __device__ static __forceinline__ Vec load(const T* p) {
    check(p);
    return *reinterpret_cast<const Vec*>(p);
  }
  /// Stores to an address aligned to the whole vector.
  __device__ __forceinline__ void store(T* p) const {
    check(p);
    *reinterpret_cast<Vec*>(p) = *this;
  }
  /// The same, in global memory, and surely with one instruction: nvcc 13.0 makes of `store` four of 4 bytes, or eight of 2, where it sees what was rounded to what
  /// (16-bit maps then reached 1.6 of 4.2 TB/s on an H200).
  __device__ __forceinline__ void store_global(T* p) const {
    check(p);
#ifndef OPFORGE_EMULATE
    if constexpr (sizeof(T) * N >= 8) {
      uint32_t words[sizeof(T) * N / 4];
      memcpy(words, v, sizeof(words));
      if constexpr (sizeof(words) == 16) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
      } else {
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(words[0]), "r"(words[1]) : "memory");
      }
      return;
    }
#endif
    *reinterpret_cast<Vec*>(p) = *this;
  }

 private:
  __device__ static __forceinline__ void check(const T* p) {
#ifdef OPFORGE_EMULATE
    if (reinterpret_cast<uintptr_t>(p) % sizeof(Vec) != 0) emu::fail("misaligned Vec access");
#else
    (void)p;
#endif
  }
};

/// Elements of T in 16 bytes.
template <typename T>
constexpr int kVecSize = 16 / sizeof(T);

/// Whether rows of `cols` elements starting at p can be accessed as Vec<T, kVecSize<T>>.
template <typename T>
inline bool can_vectorize(const T* p, int64_t cols) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && cols % kVecSize<T> == 0;
}

// ---------------------------------------------------------------------------
// Reductions
// ---------------------------------------------------------------------------

struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
  static constexpr float identity = 0.0f;
};
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  static constexpr float identity = -3.402823466e+38f;
};

/// Combines a value over the warp; every lane gets the result.  All 32 lanes must call.
template <typename Op>
__device__ __forceinline__ float warp_reduce(float value, Op op) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kFullMask, value, offset));
  return value;
}

/// Combines a value over the block; every thread gets the result.  All threads must
/// call, blockDim.y and z must be 1 and blockDim.x a multiple of 32.
template <typename Op>
__device__ __forceinline__ float block_reduce(float value, Op op) {
  __shared__ float partial[kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  value = warp_reduce(value, op);
  if (warps == 1) return value;
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = warp_reduce(lane < warps ? partial[lane] : Op::identity, op);
  __syncthreads();  // partial may be written again by the next reduction
  return value;
}

/// Sum over the warp, in every lane.
__device__ __forceinline__ float warp_reduce_sum(float value) { return warp_reduce(value, Sum()); }
/// Maximum over the warp, in every lane.
__device__ __forceinline__ float warp_reduce_max(float value) { return warp_reduce(value, Max()); }
/// Sum over the block, in every thread.
__device__ __forceinline__ float block_reduce_sum(float value) {
  return block_reduce(value, Sum());
}
/// Maximum over the block, in every thread.
__device__ __forceinline__ float block_reduce_max(float value) {
  return block_reduce(value, Max());
}

}  // namespace opforge

#endif  // OPFORGE_DEVICE_H_
