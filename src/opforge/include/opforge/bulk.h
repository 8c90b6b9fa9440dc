// opforge/bulk.h - copies from global into shared memory that run by themselves and report their arrival (sm_90 and later).
//
// source    PTX ISA 8.0: mbarrier, cp.async.bulk
#ifndef OPFORGE_BULK_H_
#define OPFORGE_BULK_H_

#include "opforge/device.h"

namespace opforge {

/// Counts the bytes that have arrived, in phases: expect() opens one, it is over when as many bytes are there.
struct Arrival {
  uint64_t state;

#ifdef OPFORGE_EMULATE
  // phases completed in the upper half, bytes missing in the lower
  __device__ void begin() { state = 0; }
  __device__ void expect(uint32_t bytes) { state = (state >> 32 << 32) + bytes; }
  __device__ void wait(uint32_t parity) {
    while ((static_cast<volatile uint64_t&>(state) >> 32 & 1) == parity) emu::yield_now();
  }
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // launch_onchip_by asks for no copies here
  __device__ __forceinline__ void begin() { __trap(); }
  __device__ __forceinline__ void expect(uint32_t) { __trap(); }
  __device__ __forceinline__ void wait(uint32_t) { __trap(); }
#else
  __device__ __forceinline__ uint32_t address() { return static_cast<uint32_t>(__cvta_generic_to_shared(&state)); }
  /// To be called by one thread, before a barrier of the block.
  __device__ __forceinline__ void begin() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(address()) : "memory");
  }
  __device__ __forceinline__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  /// Waits for the phase of this parity: 0 for the first, 1 for the second, 0 for the third, …
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(address()), "r"(parity)
        : "memory");
  }
#endif
};

/// Copies `bytes` (a multiple of 16, both addresses too) into shared memory; they count for `arrival`. Called by one thread.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, uint32_t bytes, Arrival& arrival) {
#ifdef OPFORGE_EMULATE
  std::memcpy(shared, global, bytes);
  arrival.state -= bytes;
  if (static_cast<uint32_t>(arrival.state) == 0) arrival.state += uint64_t(1) << 32;
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 900
  (void)shared, (void)global, (void)bytes, (void)arrival;
#else
  uint64_t policy;
  // read once: what is written meanwhile has more use for the L2 cache
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(bytes), "r"(arrival.address()), "l"(policy)
               : "memory");
#endif
}

}  // namespace opforge

#endif  // OPFORGE_BULK_H_
