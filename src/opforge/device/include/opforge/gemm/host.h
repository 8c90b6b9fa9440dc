// opforge/gemm/host.h - the product of two matrices on a CPU: packed panels that stay in cache, and a register tile of float32 sums.
//
// An epilogue is `epilogue(line, matrix, row, col, cols)`: it changes `cols` float32 results of one row in place, beginning at
// column col, before they are rounded and stored.
//
// source    Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008;
//           the loop order is that of Van Zee and van de Geijn, BLIS, ACM TOMS 41(3), 2015
#ifndef OPFORGE_GEMM_HOST_H_
#define OPFORGE_GEMM_HOST_H_

#include "opforge/gemm/few_rows_host.h"
#include "opforge/gemm/host_tile.h"

namespace opforge {
namespace gemm {

/// How a product is blocked.
///
/// depth   terms per panel, which are added up in registers     strip   columns in a strip
/// block   register tiles in a block of rows                    isa     whose registers: 1 those that every CPU of the kind has, 2 AVX2,
///                                                                      3 AVX-512, 0 the widest of the CPU that runs it
template <int depth, int block, int strip, int isa>
struct Blocking {
  static constexpr int64_t kDepth = depth, kBlock = block, kStrip = strip;
  static constexpr int kIsa = isa;
};

// Where sums of earlier terms wait, and where the finished ones go.
template <typename T>
struct Target {
  Elements<float> partial;
  Elements<T> out;
  int64_t first_col;
  bool first, last;
};

// Adds a register tile to what earlier terms gave, and stores it; after the last term, rounded to the output's dtype.
template <int width, typename T, typename Epilogue>
inline void store_tile(float* sums, const Target<T>& target, int64_t row, int64_t col, int64_t rows, int64_t cols, const Epilogue& epilogue) {
  for (int64_t i = 0; i < rows; ++i) {
    float* line = sums + i * width;
    if (!target.first) {
      const float* before = target.partial.data + (row + i) * target.partial.row + col;
      for (int64_t j = 0; j < cols; ++j) line[j] += before[j];
    }
    if (!target.last) {
      __builtin_memcpy(target.partial.data + (row + i) * target.partial.row + col, line, cols * sizeof(float));
      continue;
    }
    epilogue(line, row + i, target.first_col + col, cols);
    store_line(line, target.out, row + i, col, cols);
  }
}

template <typename Tile, typename B, typename Left, typename Right, typename TOut, typename Epilogue>
void multiply_blocked(const Left& a, const Right& b, Elements<TOut> c, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
  constexpr int kTileRows = Tile::kRows, kTileCols = Tile::kCols;
  constexpr int64_t kDepth = B::kDepth, kBlockRows = B::kBlock * kTileRows, kStripCols = round_up(B::kStrip, kTileCols);
  const int64_t strip = std::min(kStripCols, round_up(n, kTileCols));
  const int64_t depth_most = std::min(kDepth, k);
  Buffer packed_b(depth_most * strip);
  // float32 results that lie in rows hold their own partial sums
  const bool in_place = std::is_same<TOut, float>::value && c.col == 1;
  const bool spare = !in_place && k > kDepth;
  Buffer partial(spare ? m * strip : 0);
  // blocks of nearly equal height, so that threads finish together
  const int64_t wanted = round_up(m, kBlockRows) / kBlockRows;
  const int64_t height = round_up((m + wanted - 1) / wanted, kTileRows);
  const int64_t blocks = (m + height - 1) / height;
  for (int64_t j0 = 0; j0 < n; j0 += strip) {
    const int64_t cols = std::min(strip, n - j0);
    const int64_t panels = round_up(cols, kTileCols) / kTileCols;
    // few rows: the columns are shared out among the threads as well
    const int64_t shares = std::min<int64_t>(panels, std::max<int64_t>(1, 16 / blocks));
    for (int64_t l0 = 0; l0 < k; l0 += kDepth) {
      const int64_t depth = std::min(kDepth, k - l0);
      parallel_for(0, panels, 1 + 65536 / (depth * kTileCols), [&](int64_t first, int64_t last) {
        for (int64_t p = first; p < last; ++p)
          b.template pack<kTileCols>(j0 + p * kTileCols, l0, std::min<int64_t>(kTileCols, cols - p * kTileCols), depth, packed_b.get() + p * kTileCols * depth);
      });
      Target<TOut> target{{spare ? partial.get() : reinterpret_cast<float*>(c.data) + j0, spare ? strip : c.row, 1},
                       {c.data + j0 * c.col, c.row, c.col},
                       j0,
                       l0 == 0,
                       l0 + depth == k};
      const int64_t work = depth * height * cols / shares;
      parallel_for(0, blocks * shares, 1 + 65536 / work, [&](int64_t first, int64_t last) {
        Buffer packed_a(height * depth);
        int64_t packed = -1;
        for (int64_t task = first; task < last; ++task) {
          const int64_t i0 = task / shares * height, share = task % shares;
          const int64_t rows = std::min(height, m - i0);
          if (packed != i0) {
            for (int64_t i = 0; i < rows; i += kTileRows)
              a.template pack<kTileRows>(i0 + i, l0, std::min<int64_t>(kTileRows, rows - i), depth, packed_a.get() + i * depth);
            packed = i0;
          }
          for (int64_t p = panels * share / shares; p < panels * (share + 1) / shares; ++p) {
            for (int64_t i = 0; i < rows; i += kTileRows) {
              alignas(64) float sums[kTileRows * kTileCols];
              Tile::multiply(packed_a.get() + i * depth, packed_b.get() + p * kTileCols * depth, depth, sums);
              store_tile<kTileCols>(sums, target, i0 + i, p * kTileCols, std::min<int64_t>(kTileRows, rows - i),
                         std::min<int64_t>(kTileCols, cols - p * kTileCols), epilogue);
            }
          }
        }
      });
    }
  }
}

// c = epilogue(a b) for k > 0, in the registers that the blocking asks for. a and b are Vectors, or have their `pack`.
template <typename B, typename Left, typename Right, typename TOut, typename Epilogue>
void multiply_packed(const Left& a, const Right& b, Elements<TOut> c, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
  switch (instruction_set<B::kIsa>()) {
#if defined(__x86_64__)
    case 3: return multiply_blocked<Avx512Tile, B>(a, b, c, m, n, k, epilogue);
    case 2: return multiply_blocked<Avx2Tile, B>(a, b, c, m, n, k, epilogue);
#endif
    default: return multiply_blocked<PlainTile, B>(a, b, c, m, n, k, epilogue);
  }
}

template <typename B, typename T, typename TOut, typename Epilogue>
void multiply_one(Elements<const T> a, Elements<const T> b, Elements<TOut> c, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
  // an empty sum is one of no terms, which the loop over panels would not store; a few rows are not worth packing
  if (k == 0 || (m <= 2 * kFewRows && (b.col == 1 || b.row == 1))) {
    for (int64_t i = 0; i < m; i += kFewRows)
      multiply_few_rows(a.at(i, 0), b, c.at(i, 0), std::min(kFewRows, m - i), n, k,
                        [&](float* line, int64_t row, int64_t col, int64_t cols) { epilogue(line, i + row, col, cols); });
    return;
  }
  multiply_packed<B>(Vectors<T>{a.data, a.row, a.col}, Vectors<T>{b.data, b.col, b.row}, c, m, n, k, epilogue);
}

// As many matrices are shared out whole; fewer are each shared out by themselves, and threads wait for each other after each.
inline int64_t many_matrices() { return std::min<int64_t>(16, 4 * max_threads()); }

/// c = epilogue(a b) for every matrix of a batch.  The matrices have been checked.
template <typename B, typename T, typename TOut, typename Epilogue>
void multiply(const Matrix& a, const Matrix& b, const Matrix& c, const Epilogue& epilogue) {
  const int64_t m = c.rows, n = c.cols, k = a.cols;
  const auto one = [&](int64_t number) {
    multiply_one<B>(elements_of<const T>(a, number), elements_of<const T>(b, number), elements_of<TOut>(c, number), m, n, k,
                    [&](float* line, int64_t row, int64_t col, int64_t cols) { epilogue(line, number, row, col, cols); });
  };
  if (c.batch >= many_matrices()) {
    parallel_for(0, c.batch, 1, [&](int64_t first, int64_t last) {
      for (int64_t number = first; number < last; ++number) one(number);
    });
  } else {
    for (int64_t number = 0; number < c.batch; ++number) one(number);
  }
}

/// The epilogue of a bare product.
struct Unchanged {
  void operator()(float*, int64_t, int64_t, int64_t, int64_t) const {}
};

}  // namespace gemm
}  // namespace opforge

#endif  // OPFORGE_GEMM_HOST_H_
