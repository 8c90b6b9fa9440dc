// opforge/gemm/wgmma/kernel.h - the kernels: shared memory and the roles of warpgroups.
#ifndef OPFORGE_GEMM_WGMMA_KERNEL_H_
#define OPFORGE_GEMM_WGMMA_KERNEL_H_

#include "opforge/gemm/wgmma/consumer.h"

namespace opforge {
namespace wgmma {

// ---------------------------------------------------------------------------
// Kernels
// ---------------------------------------------------------------------------

// The parts of a block's shared memory. Swizzled boxes begin at multiples of 1024 bytes of the shared address space, at the
// same place in every block of a cluster.
template <typename S>
struct Shared {
  Pipeline<S> pipeline;
  unsigned char* out;

  // Sets up the pipeline for this many arrivals per phase; every thread of the block (of the cluster, if shared) must call.
  template <bool kUnclustered>
  __device__ __forceinline__ static Shared begin(unsigned char* raw, int filling, int emptying) {
    Shared shared;
    shared.pipeline.tiles = raw + (1024 - shared_address(raw) % 1024) % 1024;
    shared.out = shared.pipeline.tiles + S::kStages * S::kStageBytes;
    shared.pipeline.full = reinterpret_cast<Barrier*>(shared.out + S::kOutBytes);
    shared.pipeline.empty = shared.pipeline.full + S::kStages;
    shared.pipeline.read = shared.pipeline.empty + S::kStages;
    shared.pipeline.floats = reinterpret_cast<float*>(shared.pipeline.full + S::kBarriers * S::kStages);
    if (threadIdx.x == 0) {
      for (int i = 0; i < S::kStages; ++i) {
        hopper::init_barrier(&shared.pipeline.full[i], filling);
        hopper::init_barrier(&shared.pipeline.empty[i], emptying);
        if (S::kFloats > 0) hopper::init_barrier(&shared.pipeline.read[i], 4 * kConsumers);
      }
      hopper::fence_barrier_init();
    }
    if constexpr (kUnclustered) {
      __syncthreads();
    } else {
      hopper::cluster_sync();
    }
    return shared;
  }
};

// This warpgroup's number: the same in all lanes, and the compiler knows it.
__device__ __forceinline__ int warpgroup() { return __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / 128, 0); }

// kAlongM: neighbours in memory are neighbours in m (a is stored column by column); kAlongN: likewise for b stored row by row.
template <typename S, bool kAlongM, bool kAlongN, typename Sink, typename Epilogue, typename Promotion>
__global__ void __cluster_dims__(S::kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    product_wgmma(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const __grid_constant__ Sink sink, int m, int n, int k,
                  bool cluster_swapped, const __grid_constant__ Epilogue epilogue, const __grid_constant__ Promotion promote,
                  const __grid_constant__ Batch<S::kBatched> batch) {
  constexpr bool kUnclustered = S::kCluster == 1;
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<kUnclustered>(raw, S::kFloats > 0 ? 1 + kFloatLoaders / 32 : 1, (S::kClusterM + S::kClusterN - 1) * kConsumers);
  const TileScheduler<S> tile_scheduler(m, n, batch.count, cluster_swapped);
  const int steps = (k + S::kDepth - 1) / S::kDepth, group = warpgroup();
  if (group == kConsumers) {
    hopper::shrink_registers<kProducerRegisters>();
    if (threadIdx.x % 128 == 0) {
      hopper::prefetch_map(&map_a);
      hopper::prefetch_map(&map_b);
      if (S::kOverlap) hopper::wait_for_prior_kernels();
      if constexpr (kAdds<Sink>) hopper::prefetch_map(&sink.added);
      if (S::kClusterSwappable && cluster_swapped) {
        produce<S, kAlongM, kAlongN, S::kClusterSwappable>(shared.pipeline, tile_scheduler, &map_a, &map_b, sink, steps, batch);
      } else {
        produce<S, kAlongM, kAlongN, false>(shared.pipeline, tile_scheduler, &map_a, &map_b, sink, steps, batch);
      }
    }
    if constexpr (S::kFloats > 0) {
      if (threadIdx.x % 128 >= 32) {
        if (S::kOverlap) hopper::wait_for_prior_kernels();
        load_floats(shared.pipeline, tile_scheduler, steps, promote);
      }
    }
  } else {
    hopper::grow_registers<kConsumerRegisters>();
    const int thread = threadIdx.x % 128;
    unsigned char* out = shared.out + group * S::kOutBoxes * kBoxBytes;
    if (S::kOverlap && (Epilogue::kReads || Promotion::kReads)) hopper::wait_for_prior_kernels();
    consume<S, kAlongM, kAlongN, kUnclustered>(
        shared.pipeline, tile_scheduler, steps, group, promote,
        [&](int row0, int col0, int matrix) {
          return EpilogueLoads<S::kBoxesB, Epilogue>::hold(epilogue_for<S::kBatched>(epilogue, matrix), row0, col0, thread);
        },
        [&](float(&sums)[S::kBlockN / 2], const auto& loaded, Pipeline<S>& pipeline, int row0, int col0, int matrix) {
          store_tile<S, kUnclustered, kAdds<Sink>>(sink, epilogue_for<S::kBatched>(epilogue, matrix), loaded, sums, out, pipeline, tile_scheduler, row0, col0, m, n, group, thread,
                                             matrix);
        });
    if (thread == 0) hopper::wait_for_reads<0>();
  }
  // a block may not end while others of its cluster still write to its shared memory
  if constexpr (!kUnclustered) hopper::cluster_sync();
}

template <typename S, typename Sink, typename Epilogue, typename Promotion>
__global__ void __launch_bounds__(kThreads, 1)
    product_wgmma_plain(PlainOperand<typename S::Element> a, PlainOperand<typename S::Element> b, Sink sink, Epilogue epilogue, Promotion promote,
                        Batch<S::kBatched> batch) {
  extern __shared__ unsigned char raw[];
  const Shared<S> shared = Shared<S>::template begin<true>(raw, 128, kConsumers);
  const TileScheduler<S> tile_scheduler(a.outer, b.outer, batch.count);
  const int steps = (a.depth + S::kDepth - 1) / S::kDepth, group = warpgroup();
  if (group == kConsumers) {
    hopper::shrink_registers<kProducerRegisters>();
    produce_plainly(shared.pipeline, tile_scheduler, a, b, steps, batch, promote);
  } else {
    hopper::grow_registers<kConsumerRegisters>();
    const int thread = threadIdx.x % 128;
    consume<S, false, false, true>(
        shared.pipeline, tile_scheduler, steps, group, promote,
        [&](int row0, int col0, int matrix) {
          return EpilogueLoads<S::kBoxesB, Epilogue>::hold(epilogue_for<S::kBatched>(epilogue, matrix), row0, col0, thread);
        },
        [&](float(&sums)[S::kBlockN / 2], const auto& loaded, Pipeline<S>& pipeline, int row0, int col0, int matrix) {
          Sink own = sink;
          own.data += matrix * batch.c;
          store_tile<S, true, false>(own, epilogue_for<S::kBatched>(epilogue, matrix), loaded, sums, shared.out, pipeline, tile_scheduler, row0, col0, a.outer, b.outer, group,
                                     thread, matrix);
        });
  }
}

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_KERNEL_H_
