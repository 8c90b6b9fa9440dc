// opforge/gemm/wgmma/shape.h - the Shape of a product on Hopper: its tiles, its cluster and what follows from them; and the matrices of a batch.
#ifndef OPFORGE_GEMM_WGMMA_SHAPE_H_
#define OPFORGE_GEMM_WGMMA_SHAPE_H_

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "opforge/gemm/common.h"
#include "opforge/arch/hopper.h"

namespace opforge {
namespace wgmma {

using gemm::ByPairs;
using gemm::pairs_of;
using hopper::Barrier;
using hopper::kBox;
using hopper::kBoxBytes;

constexpr int kConsumers = 2;                     // warpgroups that multiply: 64 rows of the tile each
constexpr int kBoxesA = kConsumers, kBlockM = kBoxesA * kBox;
constexpr int kThreads = 128 * (kConsumers + 1);  // the last warpgroup issues the copies
// of 65536 registers, in steps of 8: what the copying warpgroup does not need goes to those that hold sums
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kFloatLoaders = 96;                     // threads of the copying warpgroup that load floats, where a promotion wants some
constexpr int kLeadBarrier = 1 + kConsumers;      // 0 is __syncthreads, the next ones are the consumers' own
constexpr int kPingPongBarrier = kLeadBarrier + 1;    // and another one after it

/// What a warpgroup that adds up the sums of every step by itself (see consume) does for its products meanwhile: nothing; those of the next
/// step run in a second set of sums; its columns are two halves, and while one is added the other is multiplied; warpgroups multiply in turn,
/// and one adds while the other multiplies.
enum PromotionSchedule { kSerial, kDoubleBuffered, kSplitN, kPingPong };

/// Everything that follows from the elements (16 or 8 bits), the width of a tile, the pipeline's length, the cluster's shape, how a
/// tile goes out, and the order of tiles.
///
/// block_n    columns of a tile of c                            cluster_m   blocks that share b
/// stages     steps under way at once                           cluster_n   blocks that share a
/// out_boxes  boxes of 64 columns of c under way, per consumer  group       rows of tiles that are computed together
/// lead       steps by which one consumer leads the other       overlap     blocks may start while the kernel before runs
/// batched    many products in one launch (see Batch)            floats      of each step that a promotion wants in shared memory
/// meanwhile  see there
///
/// A cluster whose sides differ may lie the other way round, which the launch decides: its blocks then share a instead of b.
template <typename T, int block_n, int stages, int cluster_m, int cluster_n, int out_boxes, int lead, int group, bool overlap, bool batched = false,
          int floats = 0, int promotion_schedule = kSerial>
struct Shape {
  using Element = T;
  static constexpr int kDepth = 128 / sizeof(T);  // terms per step: one row of a box
  static constexpr int kBlockN = block_n, kStages = stages, kClusterM = cluster_m, kClusterN = cluster_n, kLead = lead, kGroup = group;
  static constexpr bool kOverlap = overlap, kBatched = batched;
  static constexpr int kFloats = floats, kBarriers = floats > 0 ? 3 : 2;
  static constexpr int kSchedule = promotion_schedule;
  // the last box of b may be needed in part
  static constexpr int kBoxesB = (kBlockN + kBox - 1) / kBox, kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes, kCluster = kClusterM * kClusterN;
  static constexpr int kOutBoxes = out_boxes, kOutBytes = kConsumers * kOutBoxes * kBoxBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + kBarriers * static_cast<int>(sizeof(Barrier)) + kFloats * 4) + kOutBytes + 1024;
  static constexpr int kAddedBoxes = (kBoxesA + kBoxesB) / kConsumers;  // per consumer and slot, of a matrix that is added
  static constexpr int kRest = kBlockN % kBox;  // columns of the last box, if not all
  static constexpr bool kClusterSwappable = kClusterM != kClusterN;  // whether a cluster may lie the other way round
  static constexpr int kCost = 100;  // what a column costs, where shapes are compared
  static_assert(kBlockN % 16 == 0, "16 columns are two rows of matrices of stmatrix");
  static_assert(kBoxesA % kClusterN == 0 && kBoxesA % kClusterM == 0, "a is shared in whole boxes");
};

/// A shape among which one is chosen by its cost: that of a column is given in hundredths of what it is in other tiles.
template <typename S, int cost>
struct WithCost : S {
  static constexpr int kCost = cost;
};

/// The part of b's columns that one of `sharers` blocks reads for all of them, a step at a time.
///
/// Where terms lie side by side any number of columns makes a box.  Where columns do, boxes are 64 wide; if their number cannot be divided,
/// every block reads some of the terms of all of them.
template <typename S, bool kAlongN, int sharers>
struct ShareOfB {
  static constexpr bool kByTerms = kAlongN && S::kBoxesB % sharers != 0;
  static constexpr int kColumns = (kAlongN ? S::kBoxesB * kBox : S::kBlockN) / (kByTerms ? 1 : sharers);
  // of a box, as the TMA counts them: columns, or terms of 64 columns
  static constexpr int kRows = kByTerms ? kBox / sharers : kAlongN || kColumns % kBox == 0 ? kBox : kColumns;
  static constexpr int kCount = kColumns / (kAlongN ? kBox : kRows);
  static_assert(kRows % 8 == 0 && kRows <= 256, "whole rows of the swizzle, and what a box may have");
};
// bytes of a step's tiles
template <typename S, bool kAlongN>
constexpr int kStepBytes = (kBoxesA + (kAlongN ? S::kBoxesB : 0)) * kBoxBytes + (kAlongN ? 0 : S::kBlockN * 128);

/// The matrices of a batch: how many, and how many elements lie between two of a, of b, of c, of what is added. 0: one matrix serves
/// them all.
/// Of a single product nothing is passed to the kernel.
template <bool kBatched>
struct Batch {
  static constexpr int count = 1;
  static constexpr int64_t a = 0, b = 0, c = 0, added = 0;
};
template <>
struct Batch<true> {
  int count;
  int64_t a, b, c, added;
};

/// Shapes to choose from.
template <typename... Shapes>
struct OneOf {};

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_SHAPE_H_
