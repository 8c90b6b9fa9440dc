// opforge/arch/groups.h - blocks that share a row through distributed shared memory, and as many of them as run at once.
#ifndef OPFORGE_GROUPS_H_
#define OPFORGE_GROUPS_H_

#include <map>
#include <mutex>
#include <tuple>

#include "opforge/device.h"

namespace opforge {

#ifdef OPFORGE_EMULATE

inline int cluster_blocks() { return static_cast<int>(emu::self()->block->cluster_size); }
inline int cluster_block() { return static_cast<int>(emu::self()->block->cluster_rank); }
// (arrival alone is not emulated: the wait is the whole barrier)
inline void cluster_arrive() {}
inline void cluster_wait(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { emu::wait_cluster({file, line}); }
inline void cluster_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { emu::wait_cluster({file, line}); }
template <typename T>
inline void store_in_block(T* p, int block, const T& value) {
  std::memcpy(emu::in_block(p, static_cast<unsigned>(block)), &value, sizeof(T));
}
template <class Kernel>
inline int64_t resident_clusters(Kernel, int, int, std::size_t) {
  return 3;  // so few that persistent groups take several rows each
}
#define OPFORGE_LAUNCH_CLUSTERS(kernel, clusters, blocks, threads, shared_bytes, stream, ...)                                      \
  do {                                                                                                                             \
    (void)(stream);                                                                                                                \
    ::opforge::emu::launch_clusters(                                                                                               \
        #kernel, static_cast<unsigned>((clusters) * (blocks)), threads, shared_bytes, static_cast<unsigned>(blocks),               \
        [&](const auto&... opforge_args) { (kernel)(opforge_args...); }, __VA_ARGS__);                                             \
  } while (0)

#else

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900

// before Hopper there are no clusters: resident_clusters refuses more than one block
__device__ __forceinline__ int cluster_blocks() { return 1; }
__device__ __forceinline__ int cluster_block() { return 0; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void cluster_barrier() {}
template <typename T>
__device__ __forceinline__ void store_in_block(T* p, int, const T& value) { *p = value; }

#else

/// How many blocks a cluster has, and which of them this is.
__device__ __forceinline__ int cluster_blocks() {
  int blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ __forceinline__ int cluster_block() {
  int block;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
  return block;
}
/// A barrier in two parts, with work in between that needs nothing of the other blocks. Publishes nothing.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// Every thread of the cluster waits for every other; what they wrote before is seen after.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// Stores a value of 4-byte words where `p`, in this block's shared memory, lies in another block of the cluster.
template <typename T>
__device__ __forceinline__ void store_in_block(T* p, int block, const T& value) {
  static_assert(sizeof(T) % 4 == 0, "whole words");
  uint32_t words[sizeof(T) / 4], there;
  memcpy(words, &value, sizeof(T));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p))), "r"(block));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there + 4 * i), "r"(words[i]) : "memory");
}

#endif  // before Hopper

/// A launch in clusters of `blocks` blocks.
inline cudaLaunchConfig_t cluster_launch(int64_t clusters, int blocks, int threads, std::size_t shared, cudaStream_t stream, cudaLaunchAttribute& attribute) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = blocks > 1 ? 1 : 0;
  return config;
}

/// How many clusters of `blocks` blocks the current device runs at once. Prepares the kernel for its shared memory.
/// Asked once for each kind of launch. Raises RuntimeError where not even one fits.
template <class... Arguments>
inline int64_t resident_clusters(void (*kernel)(Arguments...), int blocks, int threads, std::size_t shared) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, int, int, std::size_t>, int> known;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard<std::mutex> lock(mutex);
  int& found = known[{reinterpret_cast<const void*>(kernel), device, blocks, threads, shared}];
  if (found > 0) return found;
  // never lowered: an earlier kind of launch of this kernel may need more
  cudaFuncAttributes attributes;
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  if (static_cast<int>(shared) > attributes.maxDynamicSharedSizeBytes)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "dynamic shared memory");
  if (blocks > 1) {
    // more than 8 blocks are a choice of the hardware, not of the programming model
    if (blocks > 8) check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "clusters of 16");
    cudaLaunchAttribute attribute{};
    const cudaLaunchConfig_t config = cluster_launch(1, blocks, threads, shared, nullptr, attribute);
    check_cuda(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "cudaOccupancyMaxActiveClusters");
  } else {
    int resident = 0, processors = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared), "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDevAttrMultiProcessorCount");
    found = resident * processors;
  }
  OPFORGE_CHECK(found > 0, RuntimeError, "no cluster of ", blocks, " blocks of ", threads, " threads fits this device; use an implementation without clusters");
  return found;
}

#define OPFORGE_LAUNCH_CLUSTERS(kernel, clusters, blocks, threads, shared_bytes, stream, ...)                                      \
  do {                                                                                                                             \
    cudaLaunchAttribute opforge_attribute{};                                                                                       \
    const cudaLaunchConfig_t opforge_config =                                                                                      \
        ::opforge::cluster_launch((clusters), (blocks), (threads), (shared_bytes), (stream), opforge_attribute);                   \
    ::opforge::check_cuda(cudaLaunchKernelEx(&opforge_config, kernel, __VA_ARGS__), #kernel);                                      \
  } while (0)

#endif  // OPFORGE_EMULATE

}  // namespace opforge

#endif  // OPFORGE_GROUPS_H_
