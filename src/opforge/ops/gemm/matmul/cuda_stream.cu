// Few rows: b streams from memory through a pipeline of TMA boxes into wgmma, k split among the blocks of a cluster, parts added through its shared memory.
//
// moves     b once; a once for each block of columns, or for SHARE of them, from the second-level cache
// idea      the sides are exchanged, because wgmma's first is never shorter than 64: columns of c are its rows. What limits is how many
//           bytes are under way: the pipeline has RING KB on every multiprocessor, where Little's law asks for about 32
// code      opforge/gemm/stream.h, which ../matmul_fp8 has too
// precision float32 sums; the parts of k are added in their order: the same bits at every call
// limits    m <= 128; sm_90a. What the TMA cannot address, and an a that is stored column by column, is right and slow
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
few_rows = "m <= 128"
rows_of_whole_16_bytes = "n % 8 == 0 and k % 8 == 0"

[space]
COLUMNS = [0, 64, 128, 256]
RING = [0, 64, 100, 200]
PARTS = [0, 1, 2, 4, 8]
SHARE = [0, 1, 2, 4]
OVERLAP = [0, 1]
DEEP = [0, 1, 2]
BEHIND = [0, 1]
ONCE = [0, 1]

[default]
COLUMNS = 0
RING = 0
PARTS = 0
SHARE = 0
OVERLAP = 1
DEEP = 0
BEHIND = 0
ONCE = 0

[limits]
every_part_has_a_step = "PARTS * 128 <= k or PARTS == 0"
a_cluster_has_8_blocks = "PARTS * SHARE <= 8"
many_rows_are_shared = "SHARE <= 1 or m > 32"
a_step_goes_with_its_columns = "(COLUMNS == 0) == (DEEP == 0)"
*/
#include "opforge/gemm/stream.h"

// Tunable: columns of c in a block, how often 64 terms a step has, whether a step is handed back only when the next is under way (together by shape, where
// COLUMNS is 0); KB of the pipeline, parts of k, blocks that share a (by shape where 0); whether blocks may start while the kernel before runs, whether b is the
// first that the second-level cache drops.
#ifndef COLUMNS
#define COLUMNS 0
#endif
#ifndef RING
#define RING 0
#endif
#ifndef PARTS
#define PARTS 0
#endif
#ifndef SHARE
#define SHARE 0
#endif
#ifndef OVERLAP
#define OVERLAP 1
#endif
#ifndef DEEP
#define DEEP 0
#endif
#ifndef BEHIND
#define BEHIND 0
#endif
#ifndef ONCE
#define ONCE 0
#endif

namespace {

namespace stream = opforge::stream;

template <typename T>
struct Sizes {
  using Element = T;
  template <int rows, int columns, int deep, bool behind>
  using Of = stream::Chosen<stream::Shape<T, columns, rows, false, OVERLAP, deep, behind, ONCE>>;

  template <int rows, typename Visit>
  static void choose([[maybe_unused]] int64_t n, const Visit& visit) {
    if constexpr (COLUMNS > 0) {
      visit(Of<rows, COLUMNS, DEEP, BEHIND>());
    } else if constexpr (rows <= 16) {
      visit(Of<rows, 64, 2, true>());
    } else if constexpr (rows < 128) {
      visit(Of<rows, 128, 2, true>());
    } else {
      // more tiles than multiprocessors: two blocks on each, with short steps, because their pipelines are half as long
      if (opforge::ceil_div(n, int64_t{128}) > stream::multiprocessors()) return visit(Of<rows, 128, 1, false>());
      visit(Of<rows, 128, 2, false>());
    }
  }
};

template <typename T>
void product_of(const opforge::Matrix& a, const opforge::Matrix& b, const opforge::Matrix& c, cudaStream_t where) {
  stream::launch_product<Sizes<T>, T>(a, b, c, stream::Wanted{PARTS, SHARE, RING}, where, stream::NoPromotion{});
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  const opforge::Matrix left = OPFORGE_DEVICE_MATRIX(a), right = OPFORGE_DEVICE_MATRIX(b), out = OPFORGE_DEVICE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  if (out.numel() > 0) OPFORGE_DISPATCH_16_BITS(left, T, product_of<T>(left, right, out, opforge::current_stream(a)));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
