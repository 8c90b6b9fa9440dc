// opforge/gemm/wgmma/producer.h - the copying warpgroup: by the TMA, and plainly where the TMA cannot address a matrix.
#ifndef OPFORGE_GEMM_WGMMA_PRODUCER_H_
#define OPFORGE_GEMM_WGMMA_PRODUCER_H_

#include "opforge/gemm/wgmma/sink.h"

namespace opforge {
namespace wgmma {

// ---------------------------------------------------------------------------
// The copying warpgroup
// ---------------------------------------------------------------------------

// Starts one box of an operand: one step's terms from `depth` on, of the 64 rows of a or columns of b from `outer` on.
template <bool kAlongOuter, int kSharers, bool kBatched>
__device__ __forceinline__ void fill_box(uint16_t sharers, unsigned char* target, const CUtensorMap* map, int outer, int depth, int matrix, Barrier* full) {
  const int inner = kAlongOuter ? outer : depth, row = kAlongOuter ? depth : outer;
  if constexpr (kSharers > 1 && kBatched) {
    hopper::start_box_multicast(sharers, target, map, inner, row, matrix, full);
  } else if constexpr (kSharers > 1) {
    hopper::start_box_multicast(sharers, target, map, inner, row, full);
  } else if constexpr (kBatched) {
    hopper::start_box(target, map, inner, row, matrix, full);
  } else {
    hopper::start_box(target, map, inner, row, full);
  }
}

// One thread keeps the pipeline full: it loads its share of the tiles that its cluster's rows and columns have in common.
template <typename S, bool kAlongM, bool kAlongN, bool kClusterSwapped, typename Sink>
__device__ __forceinline__ void produce(Pipeline<S> pipeline, TileScheduler<S> tile_scheduler, const CUtensorMap* map_a, const CUtensorMap* map_b, const Sink& sink, int steps,
                                        const Batch<S::kBatched>& batch) {
  constexpr int kClusterM = kClusterSwapped ? S::kClusterN : S::kClusterM, kClusterN = kClusterSwapped ? S::kClusterM : S::kClusterN;
  using OfB = ShareOfB<S, kAlongN, kClusterM>;
  constexpr int kShareA = kBoxesA / kClusterN;
  uint16_t same_row = 0, same_col = 0;  // blocks that need the same part of a, of b
  for (int i = 0; i < kClusterN; ++i) same_row |= 1u << (tile_scheduler.row_in_cluster + kClusterM * i);
  for (int i = 0; i < kClusterM; ++i) same_col |= 1u << (i + kClusterM * tile_scheduler.col_in_cluster);
  const int first_a = tile_scheduler.col_in_cluster * kShareA;
  // this block's share of b: from which column and term on, and where it goes
  const int first_col = OfB::kByTerms ? 0 : tile_scheduler.row_in_cluster * OfB::kColumns, first_term = OfB::kByTerms ? tile_scheduler.row_in_cluster * OfB::kRows : 0;
  constexpr int kColumnsEach = kAlongN ? kBox : OfB::kRows;  // of one box
  const int offset_b = kBoxesA * kBoxBytes + (first_col + first_term) * 128;
  int row0, col0;
  while (tile_scheduler.take(row0, col0)) {
    if constexpr (kAdds<Sink>) {
      // unlike the operands nobody has read it yet, and the pipeline asks for it only some steps before it is needed
#pragma unroll
      for (int i = 0; i < S::kBoxesB * kConsumers; ++i) {
        const int col = col0 + i / kConsumers * kBox, row = row0 + i % kConsumers * kBox;
        if constexpr (S::kBatched) {
          hopper::prefetch_box(&sink.added, col, row, batch.added != 0 ? tile_scheduler.matrix : 0);
        } else {
          hopper::prefetch_box(&sink.added, col, row);
        }
      }
    }
    const int matrix_a = batch.a != 0 ? tile_scheduler.matrix : 0, matrix_b = batch.b != 0 ? tile_scheduler.matrix : 0;
    for (int step = 0; step < steps; ++step, pipeline.advance()) {
      hopper::wait(&pipeline.empty[pipeline.slot], pipeline.phase ^ 1);
      Barrier* full = &pipeline.full[pipeline.slot];
      hopper::arrive_and_expect_bytes(full, kStepBytes<S, kAlongN>);
      unsigned char* tiles = pipeline.tiles + pipeline.slot * S::kStageBytes;
#pragma unroll
      for (int i = 0; i < kShareA; ++i)
        fill_box<kAlongM, kClusterN, S::kBatched>(same_row, tiles + (first_a + i) * kBoxBytes, map_a, row0 + (first_a + i) * kBox, step * S::kDepth,
                                                  matrix_a, full);
#pragma unroll
      for (int i = 0; i < OfB::kCount; ++i)
        fill_box<kAlongN, kClusterM, S::kBatched>(same_col, tiles + offset_b + i * kColumnsEach * 128, map_b, col0 + first_col + i * kColumnsEach,
                                                  step * S::kDepth + first_term, matrix_b, full);
    }
    if constexpr (kAdds<Sink>) {
      // after the terms of a tile comes what its sums are added to, which no other block needs
#pragma unroll
      for (int first = 0; first < S::kBoxesB; first += S::kAddedBoxes, pipeline.advance()) {
        hopper::wait(&pipeline.empty[pipeline.slot], pipeline.phase ^ 1);
        Barrier* full = &pipeline.full[pipeline.slot];
        constexpr int kSlotBoxes = S::kAddedBoxes;
        const int boxes = min(kSlotBoxes, S::kBoxesB - first);
        hopper::arrive_and_expect_bytes(full, boxes * kConsumers * kBoxBytes);
        unsigned char* tiles = pipeline.tiles + pipeline.slot * S::kStageBytes;
#pragma unroll
        for (int i = 0; i < boxes * kConsumers; ++i)
          fill_box<false, 1, S::kBatched>(0, tiles + i * kBoxBytes, &sink.added, row0 + i % kConsumers * kBox, col0 + (first + i / kConsumers) * kBox,
                                          batch.added != 0 ? tile_scheduler.matrix : 0, full);
      }
    }
  }
  // this block will soon make room: blocks of the next kernel may take it, and wait for the end of this one there
  if (S::kOverlap) hopper::launch_dependent_kernels();
}

// Its other warps load the floats that a promotion wants of each step: `promote.source(row0, col0, i)` says where number i of step 0 lies,
// `promote.stride(i)` how far it is from there to the next step's.  A warp tells the slot's barrier once, some steps later, that its copies
// have arrived.
template <typename S, typename Promotion>
__device__ __forceinline__ void load_floats(Pipeline<S> pipeline, TileScheduler<S> tile_scheduler, int steps, const Promotion& promote) {
  constexpr int kEach = (S::kFloats + kFloatLoaders - 1) / kFloatLoaders, kLater = 2;
  static_assert(S::kStages > kLater, "slots are told of while later ones are filled");
  const int first = static_cast<int>(threadIdx.x % 128) - 32;
  int row0, col0, waiting = 0, oldest = 0;
  const auto arrived = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) hopper::arrive(&pipeline.full[oldest]);
    oldest = oldest + 1 == S::kStages ? 0 : oldest + 1;
    --waiting;
  };
  while (tile_scheduler.take(row0, col0)) {
    const float* from[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) from[j] = promote.source(row0, col0, min(first + kFloatLoaders * j, S::kFloats - 1));
    for (int step = 0; step < steps; ++step, pipeline.advance()) {
      hopper::wait(&pipeline.read[pipeline.slot], pipeline.phase ^ 1);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int i = first + kFloatLoaders * j;
        if (i < S::kFloats) {
          hopper::start_float(pipeline.floats + pipeline.slot * S::kFloats + i, from[j]);
          from[j] += promote.stride(i);
        }
      }
      commit_copies();
      if (++waiting > kLater) {
        wait_for_copies<kLater>();
        arrived();
      }
    }
  }
  wait_for_copies<0>();
  while (waiting > 0) arrived();
}

// An operand that the TMA cannot address, seen from the sums: `outer` runs along m (a) or n (b). Strides in elements.
template <typename T>
struct PlainOperand {
  const T* data;
  int64_t outer_stride, depth_stride;
  int outer, depth;
};

// The copying warpgroup fills boxes itself: 16 bytes of one row or column at a time, zero beyond an edge.
template <int kBoxes, typename T>
__device__ __forceinline__ void fill_plainly(const PlainOperand<T>& from, int outer0, int depth0, unsigned char* boxes, int thread) {
  constexpr int kRows = kBoxes * kBox, kPieces = 8, kEach = kVecSize<T>;
  const bool pieces_first = from.depth_stride == 1;  // neighbouring threads read neighbours in memory
  for (int i = thread; i < kRows * kPieces; i += 128) {
    const int row = pieces_first ? i / kPieces : i % kRows, piece = pieces_first ? i % kPieces : i / kRows;
    const int outer = outer0 + row, depth = depth0 + piece * kEach;
    const int room = outer < from.outer ? from.depth - depth : 0;
    const T* source = from.data + outer * from.outer_stride + depth * from.depth_stride;
    Vec<T, kEach> loaded;
#pragma unroll
    for (int j = 0; j < kEach; ++j) loaded[j] = j < room ? source[j * from.depth_stride] : store_from_float<T>(0.0f);
    loaded.store(reinterpret_cast<T*>(boxes + row * 128 + (piece ^ row % 8) * 16));
  }
}

template <typename S, typename T, typename Promotion>
__device__ __forceinline__ void produce_plainly(Pipeline<S> pipeline, TileScheduler<S> tile_scheduler, const PlainOperand<T>& a, const PlainOperand<T>& b, int steps, const Batch<S::kBatched>& batch,
                                                const Promotion& promote) {
  const int thread = threadIdx.x % 128;
  int row0, col0;
  while (tile_scheduler.take(row0, col0)) {
    PlainOperand<T> left = a, right = b;
    left.data += tile_scheduler.matrix * batch.a;
    right.data += tile_scheduler.matrix * batch.b;
    for (int step = 0; step < steps; ++step, pipeline.advance()) {
      hopper::wait(&pipeline.empty[pipeline.slot], pipeline.phase ^ 1);
      unsigned char* tiles = pipeline.tiles + pipeline.slot * S::kStageBytes;
      fill_plainly<kBoxesA>(left, row0, step * S::kDepth, tiles, thread);
      fill_plainly<S::kBoxesB>(right, col0, step * S::kDepth, tiles + kBoxesA * kBoxBytes, thread);
      if constexpr (S::kFloats > 0) {
        hopper::wait(&pipeline.read[pipeline.slot], pipeline.phase ^ 1);
        for (int i = thread; i < S::kFloats; i += 128)
          pipeline.floats[pipeline.slot * S::kFloats + i] = promote.source(row0, col0, i)[step * promote.stride(i)];
      }
      hopper::fence_async_proxy();
      hopper::arrive(&pipeline.full[pipeline.slot]);
    }
  }
}

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_PRODUCER_H_
