// opforge/gemm/wgmma/store.h - a finished tile's way out: epilogues, boxes in shared memory, and the stores of them.
#ifndef OPFORGE_GEMM_WGMMA_STORE_H_
#define OPFORGE_GEMM_WGMMA_STORE_H_

#include "opforge/gemm/wgmma/producer.h"

namespace opforge {
namespace wgmma {

// Tells every block that writes into this one's slot that a consumer has done with it.
template <bool kUnclustered, typename S>
__device__ __forceinline__ void release(Barrier* empty, const TileScheduler<S>& tile_scheduler, int thread) {
  if constexpr (kUnclustered) {
    if (thread == 0) hopper::arrive(empty);
  } else {
    // in a cluster of one row or column every block feeds every other, whichever way it lies
    const bool feeds =
        S::kClusterM == 1 || S::kClusterN == 1 || thread % S::kClusterM == tile_scheduler.row_in_cluster || thread / S::kClusterM == tile_scheduler.col_in_cluster;
    if (thread < S::kCluster && feeds) hopper::arrive_at(empty, thread);
  }
}

// What an epilogue asks memory for before the products of a tile, for use after them: `Epilogue::Loaded<boxes>`, which
// `hold<boxes>(row0, col0, thread)` gives. An epilogue without it loads in `apply`.
struct Nothing {};
template <int boxes, typename Epilogue, typename = void>
struct EpilogueLoads {
  __device__ __forceinline__ static Nothing hold(const Epilogue&, int, int, int) { return {}; }
  template <int count>
  __device__ __forceinline__ static void apply(const Epilogue& epilogue, float (&sums)[count], Nothing, int box, int row0, int col0, int thread) {
    epilogue.apply(sums, row0, col0 + box * kBox, thread);
  }
};
template <int boxes, typename Epilogue>
struct EpilogueLoads<boxes, Epilogue, std::void_t<typename Epilogue::template Loaded<boxes>>> {
  using Loaded = typename Epilogue::template Loaded<boxes>;
  __device__ __forceinline__ static Loaded hold(const Epilogue& epilogue, int row0, int col0, int thread) {
    return epilogue.template hold<boxes>(row0, col0, thread);
  }
  template <int count>
  __device__ __forceinline__ static void apply(const Epilogue& epilogue, float (&sums)[count], const Loaded& loaded, int box, int row0, int col0, int thread) {
    epilogue.apply(sums, loaded, box, row0, col0 + box * kBox, thread);
  }
};

// The sums of some columns of a tile, from its box number `box` on.
template <int columns, int count>
__device__ __forceinline__ float (&part_of(float (&sums)[count], int box))[columns / 2] {
  return *reinterpret_cast<float(*)[columns / 2]>(&sums[box * (kBox / 2)]);
}

// Where piece number `piece`, of 16 bytes, lies in a row of a box whose rows have so many bytes: the TMA swizzles rows of 128 bytes by their
// place among eight, those of 64 by the pair's among four, those of 32 by the four's among two, others not.
template <int row_bytes>
__device__ __forceinline__ int swizzled(int piece, int row) {
  return row_bytes == 128 ? piece ^ row % 8 : row_bytes == 64 ? piece ^ row / 2 % 4 : row_bytes == 32 ? piece ^ row / 4 % 2 : piece;
}

// 16-bit elements go to shared memory as the lanes of a warp hold them, four 8 x 8 matrices at a time.
template <typename T, int count>
__device__ __forceinline__ void write_box(const float (&sums)[count], unsigned char* target, int row, int lane) {
  constexpr int kRowBytes = count * 4;
#pragma unroll
  for (int i = 0; i < count / 8; ++i) {
    Pair pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = i * 8 + j * 2;
      Vec<T, 2> two;
      two[0] = store_from_float<T>(sums[at]);
      two[1] = store_from_float<T>(sums[at + 1]);
      pairs[j] = *reinterpret_cast<Pair*>(&two);
    }
    hopper::store_matrices(target + row * kRowBytes + swizzled<kRowBytes>(2 * i + lane / 16, row) * 16, pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// 8-bit elements have rows of 64 bytes, or fewer: eight rows of two neighbours, as the lanes of a warp hold them, lie in different banks.
template <typename T, int count>
__device__ __forceinline__ void write_bytes(const float (&sums)[count], unsigned char* target, int thread) {
  constexpr int kRowBytes = count * 2;
  const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < count; i += 2) {
    const int down = row + i / 2 % 2 * 8, column = i / 4 * 8 + thread % 4 * 2, piece = swizzled<kRowBytes>(column / 16, down);
    detail::round_two_to_fp8<typename T::Format>(sums[i], sums[i + 1]).store(reinterpret_cast<T*>(target + down * kRowBytes + piece * 16 + column % 16));
  }
}

// sums += weight times a box that has come through the pipeline, read as write_box writes.
template <typename T, int count>
__device__ __forceinline__ void add_box(float (&sums)[count], const unsigned char* source, int row, int lane, float weight) {
#pragma unroll
  for (int i = 0; i < count / 8; ++i) {
    Pair pairs[4];
    load_matrices(pairs, source + row * 128 + swizzled<128>(2 * i + lane / 16, row) * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Vec<T, 2> two = *reinterpret_cast<const Vec<T, 2>*>(&pairs[j]);
      sums[i * 8 + j * 2] = fmaf(weight, load_as_float(two[0]), sums[i * 8 + j * 2]);
      sums[i * 8 + j * 2 + 1] = fmaf(weight, load_as_float(two[1]), sums[i * 8 + j * 2 + 1]);
    }
  }
}

// What is added counts once, in a batch as often as the epilogue says.
template <bool kBatched, typename Epilogue>
__device__ __forceinline__ float weight_of(const Epilogue& epilogue) {
  if constexpr (kBatched) {
    return epilogue.weight();
  } else {
    return 1.0f;
  }
}

// Stores what a box of shared memory holds, at (row, col) of c, from one thread.
template <bool kBatched>
__device__ __forceinline__ void start_out(const CUtensorMap* map, int row, int col, int matrix, const unsigned char* source, bool inside) {
  if (inside) {
    if constexpr (kBatched) {
      hopper::start_store(map, col, row, matrix, source);
    } else {
      hopper::start_store(map, col, row, source);
    }
  }
  hopper::commit_stores();
}

// 64 rows of the tile go out in boxes of 64 columns; two are under way while the next is written, and while the next tile
// is multiplied.
template <typename S, bool kUnclustered, bool kAdded, int columns, typename T, typename Epilogue, typename Loaded>
__device__ __forceinline__ void store_box(const RestByMap<T>& sink, const Epilogue& epilogue, const Loaded& loaded, float (&all)[S::kBlockN / 2], int box,
                                          unsigned char* out, Pipeline<S>& pipeline, const TileScheduler<S>& tile_scheduler, int row0, int col0, int m, int n, int group, int thread,
                                          int matrix) {
  const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
  unsigned char* target = out + box % S::kOutBoxes * kBoxBytes;
  float(&sums)[columns / 2] = part_of<columns>(all, box);
  EpilogueLoads<S::kBoxesB, Epilogue>::apply(epilogue, sums, loaded, box, row0, col0, thread);
  if constexpr (kAdded) {
    if (box % S::kAddedBoxes == 0) hopper::wait(&pipeline.full[pipeline.slot], pipeline.phase);
    add_box<T>(sums, pipeline.tiles + pipeline.slot * S::kStageBytes + (box % S::kAddedBoxes * kConsumers + group) * kBoxBytes, row, lane,
               weight_of<S::kBatched>(epilogue));
  }
  if (thread == 0) hopper::wait_for_reads<S::kOutBoxes - 1>();
  hopper::named_barrier(1 + group, 128);
  if constexpr (sizeof(T) == 1) {
    write_bytes<T>(sums, target, thread);
  } else {
    write_box<T>(sums, target, row, lane);
  }
  hopper::fence_async_proxy();
  hopper::named_barrier(1 + group, 128);
  if (thread == 0)
    start_out<S::kBatched>(columns == kBox ? &sink.map : &sink.rest, row0, col0 + box * kBox, matrix, target, row0 < m && col0 + box * kBox < n);
  if constexpr (kAdded) {
    // every thread of this warpgroup has read its share of the slot: the barrier says so
    if ((box + 1) % S::kAddedBoxes == 0 || box + 1 == S::kBoxesB) {
      release<kUnclustered>(&pipeline.empty[pipeline.slot], tile_scheduler, thread);
      pipeline.advance();
    }
  }
}

template <typename S, bool kUnclustered, bool kAdded, typename T, typename Epilogue, typename Loaded>
__device__ __forceinline__ void store_tile(const RestByMap<T>& sink, const Epilogue& epilogue, const Loaded& loaded, float (&sums)[S::kBlockN / 2],
                                           unsigned char* out, Pipeline<S>& pipeline, const TileScheduler<S>& tile_scheduler, int row0, int col0, int m, int n, int group, int thread,
                                           int matrix) {
  constexpr int kWhole = S::kBlockN / kBox;
#pragma unroll
  for (int box = 0; box < kWhole; ++box)
    store_box<S, kUnclustered, kAdded, kBox>(sink, epilogue, loaded, sums, box, out, pipeline, tile_scheduler, row0, col0, m, n, group, thread, matrix);
  if constexpr (S::kRest > 0)
    store_box<S, kUnclustered, kAdded, S::kRest>(sink, epilogue, loaded, sums, kWhole, out, pipeline, tile_scheduler, row0, col0, m, n, group, thread, matrix);
}

template <typename S, bool, bool, typename T, typename Epilogue, typename Loaded>
__device__ __forceinline__ void store_tile(const ByPairs<T>& sink, const Epilogue& epilogue, const Loaded& loaded, float (&sums)[S::kBlockN / 2], unsigned char*,
                                           Pipeline<S>&, const TileScheduler<S>&, int row0, int col0, int m, int n, int, int thread, int) {
  const auto store = [&](auto& part, int box) {
    EpilogueLoads<S::kBoxesB, Epilogue>::apply(epilogue, part, loaded, box, row0, col0, thread);
    // keeps the compiler from a copy of the stores for each branch of the epilogue
    __syncwarp();
    gemm::each_pair(part, row0, col0 + box * kBox, thread, [&](float low, float high, int row, int col) { sink.store(low, high, row, col, m, n); });
  };
#pragma unroll
  for (int box = 0; box < S::kBlockN / kBox; ++box) store(part_of<kBox>(sums, box), box);
  if constexpr (S::kRest > 0) store(part_of<S::kRest>(sums, S::kBlockN / kBox), S::kBlockN / kBox);
}

// An epilogue as a matrix of a batch has it: a copy that `begin(matrix)` has led there.
template <bool kBatched, typename Epilogue>
__device__ __forceinline__ decltype(auto) epilogue_for(const Epilogue& epilogue, int matrix) {
  if constexpr (kBatched) {
    Epilogue own = epilogue;
    own.begin(matrix);
    return own;
  } else {
    return (epilogue);
  }
}

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_STORE_H_
