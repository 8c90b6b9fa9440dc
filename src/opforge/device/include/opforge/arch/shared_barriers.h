// opforge/arch/shared_barriers.h - barriers in shared memory that count arrivals and bytes (mbarrier), and what counts at them:
// bulk copies from global memory, and stores into other blocks of the cluster. sm_90 or later.
//
// The CPU emulator has them too: a copy or store is done at once there, the earliest that hardware could do it.
//
// source    PTX ISA 8.0 and later: mbarrier, cp.async.bulk, st.async
#ifndef OPFORGE_SHARED_BARRIERS_H_
#define OPFORGE_SHARED_BARRIERS_H_

#include "opforge/arch/groups.h"

namespace opforge {

/// A barrier whose phases are told apart by their parity: the first is 0, and "the one before it", 1, has ended.
struct alignas(8) SharedBarrier {
#ifdef OPFORGE_EMULATE
  int32_t bytes;  // expected and not yet copied; below 0 when they came before they were expected
  int16_t pending;
  uint8_t count, parity;
#else
  uint64_t state;
#endif
};
static_assert(sizeof(SharedBarrier) == 8, "an mbarrier is eight bytes");

#ifdef OPFORGE_EMULATE

namespace detail {
inline void change_barrier(SharedBarrier* barrier, int block, int arrivals, int bytes) {
  auto* there = static_cast<SharedBarrier*>(emu::in_block(barrier, static_cast<unsigned>(block)));
  if (there->pending < arrivals) emu::fail("more arrivals at a barrier in shared memory than it was made for");
  there->pending = static_cast<int16_t>(there->pending - arrivals);
  there->bytes += bytes;
  if (there->pending == 0 && there->bytes == 0) there->pending = there->count, there->parity ^= 1;
  emu::tell_event(static_cast<unsigned>(block));
}
}  // namespace detail

inline void init_shared_barrier(SharedBarrier* barrier, int count) {
  *barrier = {0, static_cast<int16_t>(count), static_cast<uint8_t>(count), 0};
}
inline void publish_shared_barriers() {}
inline void arrive_shared(SharedBarrier* barrier) { detail::change_barrier(barrier, cluster_block(), 1, 0); }
inline void arrive_shared_expecting(SharedBarrier* barrier, int bytes) { detail::change_barrier(barrier, cluster_block(), 1, bytes); }
inline void wait_shared(SharedBarrier* barrier, int parity, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  while (barrier->parity == parity) emu::wait_event({file, line});
}
inline void wait_shared_sent(SharedBarrier* barrier, int parity, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  wait_shared(barrier, parity, file, line);
}
inline void let_copies_follow() {}
inline void start_bulk_load(void* target, const void* source, int bytes, SharedBarrier* barrier) {
  if ((reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target) | static_cast<uintptr_t>(bytes)) % 16 != 0)
    emu::fail("a bulk copy begins at 16-byte boundaries and takes a multiple of 16 bytes");
  std::memcpy(target, source, static_cast<std::size_t>(bytes));
  detail::change_barrier(barrier, cluster_block(), 0, -bytes);
}
template <typename T>
inline void send_to_block(T* target, int block, const T& value, SharedBarrier* barrier) {
  store_in_block(target, block, value);
  detail::change_barrier(barrier, block, 0, -static_cast<int>(sizeof(T)));
}

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900

// never run: what uses them is refused at its launch
__device__ __forceinline__ void init_shared_barrier(SharedBarrier*, int) {}
__device__ __forceinline__ void publish_shared_barriers() {}
__device__ __forceinline__ void arrive_shared(SharedBarrier*) {}
__device__ __forceinline__ void arrive_shared_expecting(SharedBarrier*, int) {}
__device__ __forceinline__ void wait_shared(SharedBarrier*, int) {}
__device__ __forceinline__ void wait_shared_sent(SharedBarrier*, int) {}
__device__ __forceinline__ void let_copies_follow() {}
__device__ __forceinline__ void start_bulk_load(void*, const void*, int, SharedBarrier*) {}
template <typename T>
__device__ __forceinline__ void send_to_block(T*, int, const T&, SharedBarrier*) {}

#else

namespace detail {
__device__ __forceinline__ uint32_t address_in_shared(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Whether a phase has ended, asked for a while; kCluster: whose writes are seen after.
template <bool kCluster>
__device__ __forceinline__ bool phase_ended(SharedBarrier* barrier, int parity) {
  uint32_t ended;
  const uint32_t address = address_in_shared(barrier);
  if constexpr (kCluster) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended)
                 : "r"(address), "r"(parity) : "memory");
  } else {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(ended)
                 : "r"(address), "r"(parity) : "memory");
  }
  return ended != 0;
}
}  // namespace detail

/// Makes a barrier whose phase ends after `count` arrivals and all expected bytes.
__device__ __forceinline__ void init_shared_barrier(SharedBarrier* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(detail::address_in_shared(barrier)), "r"(count) : "memory");
}
/// Makes new barriers visible to the cluster and to bulk copies; a barrier of the threads that use them must follow.
__device__ __forceinline__ void publish_shared_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// Arrives; what this thread wrote to shared memory before is seen by those who wait.
__device__ __forceinline__ void arrive_shared(SharedBarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(detail::address_in_shared(barrier)) : "memory");
}
/// Arrives, and lets the phase end only after `bytes` more have been copied or sent.
__device__ __forceinline__ void arrive_shared_expecting(SharedBarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(detail::address_in_shared(barrier)), "r"(bytes) : "memory");
}
/// Waits until the phase of that parity has ended; what this block's threads did before they arrived, and what has been copied,
/// is seen after.
__device__ __forceinline__ void wait_shared(SharedBarrier* barrier, int parity) {
  while (!detail::phase_ended<false>(barrier, parity)) continue;
}
/// The same, and what other blocks of the cluster have sent is seen too: it empties the first-level cache.
__device__ __forceinline__ void wait_shared_sent(SharedBarrier* barrier, int parity) {
  while (!detail::phase_ended<true>(barrier, parity)) continue;
}
/// What this thread has read of shared memory may be overwritten by bulk copies. Every thread that has read calls it before it, or
/// a lane of its warp, arrives where the copying thread waits. Arriving is not enough: it orders loads and stores, and copies
/// are made by another unit (another proxy), so that one may overwrite what a load, issued before the arrival, has yet to fetch.
__device__ __forceinline__ void let_copies_follow() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// Starts copying from global memory into this block's shared memory; the barrier is told of the bytes. Both addresses and
/// `bytes` are multiples of 16.
__device__ __forceinline__ void start_bulk_load(void* target, const void* source, int bytes, SharedBarrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(detail::address_in_shared(target)),
               "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(detail::address_in_shared(barrier))
               : "memory");
}
/// Stores a value of 4-byte words where `target`, in this block's shared memory, lies in another block of the cluster (or in
/// this one), whose `barrier` is told of the bytes. Only in a launch with clusters: in one without, it is an illegal instruction.
template <typename T>
__device__ __forceinline__ void send_to_block(T* target, int block, const T& value, SharedBarrier* barrier) {
  static_assert(sizeof(T) % 4 == 0, "whole words");
  uint32_t words[sizeof(T) / 4], there, told;
  memcpy(words, &value, sizeof(T));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(detail::address_in_shared(target)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(told) : "r"(detail::address_in_shared(barrier)), "r"(block));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(there + 4 * i), "r"(words[i]), "r"(told) : "memory");
}
#endif

}  // namespace opforge

#endif  // OPFORGE_SHARED_BARRIERS_H_
