// opforge/gemm/wgmma/tunables.h - what a file that multiplies by gemm/wgmma/launch.h is tuned by, and the shapes that follow.
#ifndef OPFORGE_GEMM_WGMMA_TUNABLES_H_
#define OPFORGE_GEMM_WGMMA_TUNABLES_H_

#include "opforge/gemm/wgmma/launch.h"

// Tunable: columns of a tile of c, steps under way at once, blocks that share b, blocks that share a, rows of tiles computed
// together, boxes of c under way, steps by which one consumer leads the other, which narrower tiles are used where they cost less
// (0: none, 1: of 128 and 64 columns, 2: of 224, 192 and 160 too), whether blocks may start while the kernel before runs.
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

namespace opforge {
namespace wgmma {

template <typename T, bool batched = false>
using Wide = Shape<T, BLOCK_N, STAGES, CLUSTER_M, CLUSTER_N, OUT_BOXES, LEAD, GROUP, OVERLAP, batched>;
// where c has so few wide tiles that multiprocessors would have none, or less to do than others: 512 x 14336 are 256 tiles of 224 columns,
// 3072 x 3072 are 384 of 192, 384 x 6144 are 120 of 160, for 132 multiprocessors.  A narrow tile uses an element of a for fewer products; what
// that costs was measured at six shapes on one H200
template <typename T, bool batched = false>
using Tile64 = WithCost<Shape<T, 64, 7, 1, 1, 1, 0, GROUP, OVERLAP, batched>, 145>;
template <typename T, bool batched = false>
using Tile128 = WithCost<Shape<T, 128, 6, 2, 1, 2, 2, GROUP, OVERLAP, batched>, 102>;
template <typename T, bool batched = false>
using Tile160 = WithCost<Shape<T, 160, 5, 2, 1, 1, 2, GROUP, OVERLAP, batched>, 104>;
template <typename T, bool batched = false>
using Tile192 = WithCost<Shape<T, 192, 5, 2, 1, 1, 2, GROUP, OVERLAP, batched>, 102>;
template <typename T, bool batched = false>
using Tile224 = WithCost<Shape<T, 224, 4, 2, 1, 2, 2, GROUP, OVERLAP, batched>, 102>;
template <typename T, bool batched>
using AllWidths = OneOf<Tile64<T, batched>, Tile128<T, batched>, Tile160<T, batched>, Tile192<T, batched>, Tile224<T, batched>>;
template <typename T, bool batched = false>
using Narrow = std::conditional_t<
    NARROW == 0, OneOf<>,
    std::conditional_t<NARROW == 2 && (BLOCK_N > 224), AllWidths<T, batched>,
                       std::conditional_t<(BLOCK_N > 128), OneOf<Tile64<T, batched>, Tile128<T, batched>>, OneOf<Tile64<T, batched>>>>>;

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_TUNABLES_H_
