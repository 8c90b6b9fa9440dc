// opforge/gemm/wgmma/launch.h - the product of two matrices on Hopper: TMA fills a pipeline of tiles, two warpgroups multiply from it.
//
// One thread of a third warpgroup keeps the pipeline full; blocks of a cluster share what they read; blocks stay for many tiles, and
// a finished tile goes out while the next one is multiplied.  A kernel says the Shape, what happens to the sums before they are
// stored (an epilogue), and where they go (a sink); `launch_product` does the rest.  sm_90a alone.
//
// The parts, in the order in which they build on each other: shape.h, pipeline.h, scheduler.h, sink.h, producer.h, store.h, consumer.h,
// kernel.h; this one is the host's.
//
// source    PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg; the division of labour follows the published
//           descriptions of warp-specialised kernels (Bauer et al., CudaDMA, SC 2011)
#ifndef OPFORGE_GEMM_WGMMA_LAUNCH_H_
#define OPFORGE_GEMM_WGMMA_LAUNCH_H_

#include "opforge/gemm/wgmma/kernel.h"

namespace opforge {
namespace wgmma {

/// How a matrix lies in memory, as the TMA sees it: rows of contiguous elements, `pitch` elements apart.
struct Lines {
  bool addressable;
  bool transposed;  // the contiguous direction is the first dimension
  int64_t inner, outer, pitch;
};

/// The lines of a matrix of elements of `size` bytes.
inline Lines lines_of(const Matrix& matrix, int64_t size) {
  const int64_t unit = 16 / size;
  for (const bool transposed : {false, true}) {
    const Matrix as = transposed ? matrix.transposed() : matrix;
    // a single row has no next one: any pitch will do
    const int64_t pitch = as.rows == 1 ? (as.cols + unit - 1) / unit * unit : as.row;
    const bool contiguous = as.col == 1 || as.cols == 1, aligned = as.batch == 1 || as.batch_stride % unit == 0;
    if (contiguous && aligned && pitch % unit == 0 && pitch >= as.cols && reinterpret_cast<uintptr_t>(as.data) % 16 == 0)
      return {true, transposed, as.cols, as.rows, pitch};
  }
  return {};
}

// What a kernel is told of a batch.
template <bool kBatched, typename Added>
Batch<kBatched> batch_of(const Matrix& a, const Matrix& b, const Matrix& c, const Added& added) {
  if constexpr (kBatched) {
    const auto apart = [](const Matrix& matrix) { return matrix.batch == 1 ? 0 : matrix.batch_stride; };
    Batch<true> batch{static_cast<int>(c.batch), apart(a), apart(b), apart(c), 0};
    if constexpr (std::is_same_v<Added, Matrix>) batch.added = apart(added);
    return batch;
  } else {
    return {};
  }
}

/// A matrix, or a batch of them, as the TMA is told of it: of T, lying in `lines`, in boxes of `box_rows` rows of so many bytes.
template <typename T, bool kBatched>
CUtensorMap describe(const Matrix& matrix, const Lines& lines, int box_rows = kBox, int row_bytes = 128) {
  if constexpr (kBatched) {
    // one matrix that serves the whole batch is a batch of one, whose stride means nothing
    const bool one = matrix.batch == 1 || matrix.batch_stride == 0;
    return hopper::describe_matrices(matrix.data, hopper::kMapType<T>, lines.inner, lines.outer, lines.pitch, one ? 1 : matrix.batch,
                                     one ? lines.pitch : matrix.batch_stride, box_rows, row_bytes);
  } else {
    return hopper::describe_matrix(matrix.data, hopper::kMapType<T>, lines.inner, lines.outer, lines.pitch, box_rows, sizeof(T), row_bytes);
  }
}

// Describes c in boxes of so many columns, where it goes out by TMA.
template <bool kBatched, typename T>
void describe_rest(RestByMap<T>& sink, const Matrix& c, const Lines& lines, int columns) {
  sink.rest = describe<T, kBatched>(c, lines, kBox, columns * sizeof(T));
}
template <bool, typename T>
void describe_rest(ByPairs<T>&, const Matrix&, const Lines&, int) {}

// How many clusters of a kernel this GPU runs at once. More of them would only wait for the tiles of others.
template <typename S, auto kernel>
int clusters_together() {
  static std::atomic<int> known[64];  // by device; 0 is not known yet
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const int before = known[device % 64];
  if (before > 0) return before;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes), "product_wgmma");
  cudaLaunchConfig_t config = {};
  config.gridDim = S::kCluster;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  cudaLaunchAttribute size;
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {S::kCluster, 1, 1};
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
  OPFORGE_CHECK(clusters > 0, RuntimeError, "no cluster of ", S::kCluster, " blocks with ", S::kSharedBytes, " bytes of shared memory fits this GPU");
  return known[device % 64] = clusters;
}

// Blocks that c wants, in whole clusters; what a cluster has beyond an edge is computed too.
template <typename S>
int64_t blocks_for(const Matrix& c, bool cluster_swapped) {
  const int cluster_m = cluster_swapped ? S::kClusterN : S::kClusterM, cluster_n = cluster_swapped ? S::kClusterM : S::kClusterN;
  return S::kCluster * gemm::count_tiles(c, cluster_m * kBlockM, cluster_n * S::kBlockN);
}

// Blocks of a grid of whole clusters: as many as there are tiles for, or as run at once.
template <typename S, auto kernel>
unsigned grid_for(const Matrix& c, bool cluster_swapped = false) {
  return static_cast<unsigned>(std::min<int64_t>(blocks_for<S>(c, cluster_swapped), S::kCluster * static_cast<int64_t>(clusters_together<S, kernel>())));
}

/// Launches a kernel of a Shape for the tiles of c; its blocks may begin while the kernel before runs, where the Shape says so.
/// turned: the pair of a cluster lies along the other axis of c.
template <typename S, auto kernel, typename... Arguments>
void launch_tiles(const char* name, const Matrix& c, bool cluster_swapped, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid_for<S, kernel>(c, cluster_swapped);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = S::kOverlap;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

template <typename S, bool kAlongM, bool kAlongN, typename Sink, typename Epilogue, typename Promotion>
void launch(const CUtensorMap& a, const CUtensorMap& b, const Sink& sink, const Matrix& c, int64_t k, bool cluster_swapped, cudaStream_t stream,
            const Epilogue& epilogue, const Promotion& promotion, const Batch<S::kBatched>& batch) {
  constexpr auto kernel = product_wgmma<S, kAlongM, kAlongN, Sink, Epilogue, Promotion>;
  launch_tiles<S, kernel>("product_wgmma", c, cluster_swapped, stream, a, b, sink, static_cast<int>(c.rows), static_cast<int>(c.cols), static_cast<int>(k), cluster_swapped,
                          epilogue, promotion, batch);
}

// The kernel for the way in which a and b lie in memory; 8-bit operands lie in one way only.
template <typename S, bool kAnyA, typename Sink, typename Epilogue, typename Promotion>
void launch_as(bool along_m, bool along_n, const CUtensorMap& a, const CUtensorMap& b, const Sink& sink, const Matrix& c, int64_t k, bool cluster_swapped,
               cudaStream_t stream, const Epilogue& epilogue, const Promotion& promotion, const Batch<S::kBatched>& batch) {
  auto chosen = launch<S, false, false, Sink, Epilogue, Promotion>;
  if constexpr (sizeof(typename S::Element) == 2) {
    if (along_n) chosen = launch<S, false, true, Sink, Epilogue, Promotion>;
    if constexpr (kAnyA) {
      if (along_m) chosen = along_n ? launch<S, true, true, Sink, Epilogue, Promotion> : launch<S, true, false, Sink, Epilogue, Promotion>;
    }
  }
  chosen(a, b, sink, c, k, cluster_swapped, stream, epilogue, promotion, batch);
}

// Rows of b's boxes, as the TMA counts them.
template <typename S>
int box_rows_of_b(bool along_n, bool cluster_swapped) {
  constexpr int kM = S::kClusterM, kN = S::kClusterN;
  if (cluster_swapped) return along_n ? ShareOfB<S, true, kN>::kRows : ShareOfB<S, false, kN>::kRows;
  return along_n ? ShareOfB<S, true, kM>::kRows : ShareOfB<S, false, kM>::kRows;
}

// The shape of least cost, and whether its clusters lie the other way round: a column costs what its shape says, and those count that a
// multiprocessor computes one after another.
template <typename Wide, typename... Others, typename Launch>
void launch_cheapest(OneOf<Others...>, const Matrix& c, int64_t blocks, const Launch& launch) {
  int64_t least = -1;
  int chosen = 0, number = -1;
  bool cluster_swapped = false;
  const auto consider = [&](auto shape) {
    using S = decltype(shape);
    ++number;
    for (const bool other_way : {false, true}) {
      if (other_way && !S::kClusterSwappable) continue;
      const int64_t cost = ceil_div(blocks_for<S>(c, other_way), blocks) * S::kBlockN * S::kCost;
      if (least >= 0 && cost >= least) continue;
      least = cost;
      chosen = number;
      cluster_swapped = other_way;
    }
  };
  consider(Wide());
  (consider(Others()), ...);
  if (chosen == 0) return launch(Wide(), cluster_swapped);
  number = 0;
  ((++number == chosen ? launch(Others(), cluster_swapped) : void()), ...);
}

/// c = epilogue(a b) with the TMA, by `Wide` tiles, or by those of `Others` (OneOf<…>) that leave multiprocessors idle for less. What the
/// TMA cannot address the third warpgroup copies itself, slowly and rightly.  The matrices have been checked.
/// Of batched shapes every matrix of the batch is computed; `epilogue.begin(matrix)` says which one a tile is of, and `weight()` by
/// what `added` is multiplied.
///
/// TOut    elements of c: those of 8 and 16 bits go out by TMA, others by pairs
/// kAnyA   whether kernels are compiled for an a that is stored column by column; without them it goes the slow way
/// added   a matrix of c's shape and type that is the last thing the epilogue adds, if that is all it is given for: its boxes come by
///         TMA, and `epilogue.before_adding()` is what happens to the sums before
template <typename Wide, typename Others, typename TOut, bool kAnyA = true, typename Epilogue, typename Promotion, typename Added = Nothing>
void launch_product(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream, const Epilogue& epilogue, const Promotion& promotion,
                    const Added& added = {}) {
  using T = typename Wide::Element;
  const Lines lines_a = lines_of(a, sizeof(T)), lines_b = lines_of(b, sizeof(T)), lines_c = lines_of(c, sizeof(TOut));
  constexpr bool kByMap = sizeof(TOut) <= 2, kBatched = Wide::kBatched, kAdded = std::is_same_v<Added, Matrix>;
  static_assert(sizeof(TOut) == 2 || !(kBatched || kAdded), "a batch, and what is added, have boxes of 16-bit elements");
  const Batch<kBatched> batch = batch_of<kBatched>(a, b, c, added);
  bool other_way = (lines_a.transposed && (!kAnyA || sizeof(T) == 1)) || (!lines_b.transposed && sizeof(T) == 1);
  if constexpr (kAdded) {
    const Lines lines = lines_of(added, sizeof(TOut));
    other_way = other_way || !lines.addressable || lines.transposed;
  }
  // the TMA stores whole 16 bytes: the last ones of a row must not reach beyond it, where another row or nothing of c's may lie
  if constexpr (kByMap) other_way = other_way || lines_c.inner * static_cast<int64_t>(sizeof(TOut)) % 16 != 0;
  // an empty sum is written by the plain kernel: the TMA describes no empty matrix
  if (!lines_a.addressable || !lines_b.addressable || other_way || a.cols == 0 || (kByMap && (!lines_c.addressable || lines_c.transposed))) {
    constexpr auto kernel = product_wgmma_plain<Wide, ByPairs<TOut>, Epilogue, Promotion>;
    const unsigned grid = grid_for<Wide, kernel>(c);
    const PlainOperand<T> left{a.typed<const T>(), a.row, a.col, static_cast<int>(a.rows), static_cast<int>(a.cols)};
    const PlainOperand<T> right{b.typed<const T>(), b.col, b.row, static_cast<int>(b.cols), static_cast<int>(b.rows)};
    ByPairs<TOut> sink = pairs_of<TOut>(c);
    // a row of one matrix of c begins where pairs do only if every matrix does
    sink.pairs = sink.pairs && (c.batch == 1 || c.batch_stride % 2 == 0);
    kernel<<<grid, kThreads, Wide::kSharedBytes, stream>>>(left, right, sink, epilogue, promotion, batch);
    return check_cuda(cudaGetLastError(), "product_wgmma_plain");
  }
  const CUtensorMap map_a = describe<T, kBatched>(a, lines_a);
  constexpr int kOutBytes = kBox * sizeof(TOut);  // a row of a box of c
  const auto sink = [&] {
    if constexpr (kAdded) {
      return AddedByMap<TOut>{{{describe<TOut, kBatched>(c, lines_c)}, {}}, describe<TOut, kBatched>(added, lines_of(added, sizeof(TOut)))};
    } else if constexpr (kByMap) {
      return RestByMap<TOut>{{describe<TOut, kBatched>(c, lines_c, kBox, kOutBytes)}, {}};
    } else {
      return pairs_of<TOut>(c);
    }
  }();
  const auto before = [&] {
    if constexpr (kAdded) {
      return epilogue.before_adding();
    } else {
      return epilogue;
    }
  }();
  using Sink = std::decay_t<decltype(sink)>;
  using Before = std::decay_t<decltype(before)>;
  const bool along_m = lines_a.transposed, along_n = !lines_b.transposed;
  constexpr auto any = product_wgmma<Wide, false, sizeof(T) == 2, Sink, Before, Promotion>;
  launch_cheapest<Wide>(Others(), c, Wide::kCluster * static_cast<int64_t>(clusters_together<Wide, any>()), [&](auto shape, bool cluster_swapped) {
    using S = decltype(shape);
    const CUtensorMap map_b = describe<T, kBatched>(b, lines_b, box_rows_of_b<S>(along_n, cluster_swapped));
    Sink into = sink;
    if (S::kRest > 0) describe_rest<kBatched>(into, c, lines_c, S::kRest);
    launch_as<S, kAnyA>(along_m, along_n, map_a, map_b, into, c, a.cols, cluster_swapped, stream, before, promotion, batch);
  });
}

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_LAUNCH_H_
