// opforge/gemm/wgmma/scheduler.h - the tile scheduler: which tile of c a block computes next.
#ifndef OPFORGE_GEMM_WGMMA_SCHEDULER_H_
#define OPFORGE_GEMM_WGMMA_SCHEDULER_H_

#include "opforge/gemm/wgmma/pipeline.h"

namespace opforge {
namespace wgmma {

// Which tile of c a block computes next. Tiles are visited by whole clusters, in the order of gemm::place, one matrix of a batch after
// another.
template <typename S>
struct TileScheduler {
  int cluster_m, cluster_n;
  int rows, cols;     // of clusters' tiles
  int next, step;     // this cluster's place, and how many clusters there are
  int row_in_cluster, col_in_cluster;
  int matrices, matrix = 0;  // how many, and the one that the last tile is of

  // blocks of a cluster have neighbouring numbers; `turned`: the cluster lies the other way round
  __device__ __forceinline__ TileScheduler(int m, int n, int count, bool cluster_swapped = false)
      : cluster_m(S::kClusterSwappable && cluster_swapped ? S::kClusterN : S::kClusterM),
        cluster_n(S::kClusterSwappable && cluster_swapped ? S::kClusterM : S::kClusterN),
        rows((m + cluster_m * kBlockM - 1) / (cluster_m * kBlockM)),
        cols((n + cluster_n * S::kBlockN - 1) / (cluster_n * S::kBlockN)),
        next(static_cast<int>(blockIdx.x) / S::kCluster),
        step(static_cast<int>(gridDim.x) / S::kCluster),
        row_in_cluster(static_cast<int>(blockIdx.x) % S::kCluster % cluster_m),
        col_in_cluster(static_cast<int>(blockIdx.x) % S::kCluster / cluster_m),
        matrices(count) {}

  // Gives the first row and column of the next tile; false when there is none.
  __device__ __forceinline__ bool take(int& row0, int& col0) {
    if (next >= rows * cols * matrices) return false;
    int tile = next;
    if constexpr (S::kBatched) {
      matrix = tile / (rows * cols);
      tile %= rows * cols;
    }
    const gemm::Place at = gemm::place(tile, rows, cols, S::kGroup);
    row0 = (at.row * cluster_m + row_in_cluster) * kBlockM;
    col0 = (at.col * cluster_n + col_in_cluster) * S::kBlockN;
    next += step;
    return true;
  }
};

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_SCHEDULER_H_
