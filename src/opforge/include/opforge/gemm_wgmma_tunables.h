// opforge/gemm_wgmma_tunables.h - what a file that multiplies by gemm_wgmma.h is tuned by, and the shapes that follow.
#ifndef OPFORGE_GEMM_WGMMA_TUNABLES_H_
#define OPFORGE_GEMM_WGMMA_TUNABLES_H_

#include "opforge/gemm_wgmma.h"

// Tunable: columns of a tile of c, steps under way at once, blocks that share b, blocks that share a, rows of tiles walked
// together, boxes of c under way, steps by which one consumer leads the other, whether narrow tiles are used where wide ones
// would be too few, whether blocks may start while the kernel before runs, whether every warp stores its own rows of c, whether tiles of 224 columns
// are used where that leaves fewer multiprocessors idle.
#ifndef BLOCK_N
#define BLOCK_N 256
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef CLUSTER_M
#define CLUSTER_M 2
#endif
#ifndef CLUSTER_N
#define CLUSTER_N 1
#endif
#ifndef GROUP
#define GROUP 8
#endif
#ifndef OUT_BOXES
#define OUT_BOXES 2
#endif
#ifndef LEAD
#define LEAD 2
#endif
#ifndef NARROW
#define NARROW 1
#endif
#ifndef OVERLAP
#define OVERLAP 1
#endif
#ifndef MIDDLE
#define MIDDLE 0
#endif
#ifndef BY_WARP
#define BY_WARP 0
#endif

namespace opforge {
namespace wgmma {

template <typename T, bool batched = false>
using Wide = Shape<T, BLOCK_N, STAGES, CLUSTER_M, CLUSTER_N, OUT_BOXES, LEAD, GROUP, OVERLAP, batched, BY_WARP>;
// where c has so few wide tiles that most multiprocessors would have none
template <typename T, bool batched = false>
using Narrow = std::conditional_t<NARROW, Shape<T, 64, 7, 1, 1, 1, 0, GROUP, OVERLAP, batched, BY_WARP>, void>;
// where tiles a little narrower leave fewer multiprocessors idle at the end (512 x 14336: 256 tiles of 224 columns for 132 of them)
template <typename T>
using Middle = std::conditional_t<MIDDLE, Shape<T, 224, STAGES, CLUSTER_M, CLUSTER_N, OUT_BOXES, LEAD, GROUP, OVERLAP, false, BY_WARP>, void>;

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_TUNABLES_H_
