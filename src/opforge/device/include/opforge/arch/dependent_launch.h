// opforge/arch/dependent_launch.h - a kernel that begins before the one ahead of it has ended (sm_90 and later).
#ifndef OPFORGE_DEPENDENT_LAUNCH_H_
#define OPFORGE_DEPENDENT_LAUNCH_H_

#include "opforge/device.h"

namespace opforge {

#if defined(OPFORGE_EMULATE) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
// here a kernel begins when the one before it has ended
__device__ __forceinline__ void let_dependents_start() {}
__device__ __forceinline__ void await_prerequisites() {}
#else
/// Lets the next kernel's blocks begin once every block of this one has said so or ended.
__device__ __forceinline__ void let_dependents_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Waits until the kernel before this one has ended and its writes can be seen.
__device__ __forceinline__ void await_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif

#ifndef OPFORGE_EMULATE
/// Launches `kernel` so that it may begin early: it calls await_prerequisites before it reads what the kernel ahead of
/// it writes.
template <typename... Parameters, typename... Arguments>
inline void launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                             const Arguments&... arguments) {
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDevAttrComputeCapabilityMajor");
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = major >= 9 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "a dependent kernel");
}
#endif

}  // namespace opforge

#endif  // OPFORGE_DEPENDENT_LAUNCH_H_
