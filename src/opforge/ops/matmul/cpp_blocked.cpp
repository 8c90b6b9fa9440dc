// Packed panels that stay in cache, and a register tile of float32 sums that the compiler keeps in vector registers.
//
// moves     a is packed once for each strip of STRIP columns, b once; c is read and written once per DEPTH terms
// limits    float16 and bfloat16 are widened to float32 while packing: no use is made of the CPU's own 16-bit products
// source    Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008;
//           the loop order is that of Van Zee and van de Geijn, BLIS, ACM TOMS 41(3), 2015
/* opforge
layouts = ["contiguous", "rows", "strided"]
space = {DEPTH = [128, 192, 256, 320, 384], BLOCK = [6, 12, 24, 36], STRIP = [512, 1024, 2048, 4096], ISA = [0, 1, 2, 3]}
default = {DEPTH = 256, BLOCK = 12, STRIP = 2048, ISA = 0}
*/
#include "opforge/host.h"

#include <algorithm>
#include <memory>
#include <new>

// Tunable: terms per panel, register tiles in a block of rows, columns in a strip; and whose registers: 1 those that every
// CPU of the kind has, 2 AVX2, 3 AVX-512, 0 the widest of the CPU that runs it.
#ifndef DEPTH
#define DEPTH 256
#endif
#ifndef BLOCK
#define BLOCK 12
#endif
#ifndef STRIP
#define STRIP 2048
#endif
#ifndef ISA
#define ISA 0
#endif

namespace {

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

constexpr int64_t kDepth = DEPTH;  // terms that are added up in registers

// sums[i][j] = sum over l of a[l][i] * b[l][j] for one register tile of kRows x kCols, from packed panels. All sums plus one
// row of b and one element of a fill the register file. A macro, because the compiler lowers vectors function by function,
// for the target that stands on the function.
#define OPFORGE_TILE(NAME, TARGET, LANES, ROWS)                                                                             \
  struct NAME {                                                                                                             \
    static constexpr int kLanes = LANES, kRows = ROWS, kVectors = 2, kCols = kLanes * kVectors;                             \
    TARGET static void multiply(const float* __restrict__ a, const float* __restrict__ b, int64_t depth, float* sums) {     \
      typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));                                             \
      Vector tile[kRows][kVectors] = {};                                                                                    \
      for (int64_t l = 0; l < depth; ++l) {                                                                                 \
        Vector row[kVectors];                                                                                               \
        _Pragma("GCC unroll 4") for (int j = 0; j < kVectors; ++j) row[j] = *reinterpret_cast<const Vector*>(b + l * kCols + j * kLanes); \
        _Pragma("GCC unroll 16") for (int i = 0; i < kRows; ++i) {                                                          \
          const float value = a[l * kRows + i];                                                                             \
          _Pragma("GCC unroll 4") for (int j = 0; j < kVectors; ++j) tile[i][j] += value * row[j];                          \
        }                                                                                                                   \
      }                                                                                                                     \
      _Pragma("GCC unroll 16") for (int i = 0; i < kRows; ++i)                                                              \
        _Pragma("GCC unroll 4") for (int j = 0; j < kVectors; ++j)                                                          \
          *reinterpret_cast<Vector*>(sums + i * kCols + j * kLanes) = tile[i][j];                                           \
    }                                                                                                                       \
  }

OPFORGE_TILE(PlainTile, , 4, 6);  // 12 of 16 registers of x86-64, 12 of 32 of Arm
#if defined(__x86_64__)
OPFORGE_TILE(Avx2Tile, __attribute__((target("avx2,fma"))), 8, 6);  // 12 of 16
OPFORGE_TILE(Avx512Tile, __attribute__((target("avx512f"))), 16, 14);  // 28 of 32
#endif

constexpr int kMostLanes = 16;

// Floats aligned to a cache line, left uninitialised.
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : data_(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t{64}))) {}
  float* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
};

// One matrix in memory: element (i, j) lies at data[i * row + j * col].
template <typename T>
struct Matrix {
  T* data;
  int64_t row, col;
};

// Packs `count` <= width vectors of `depth` elements so that target[l * width + i] is element l of vector i, as float.
// Vectors that do not exist are zero: their sums are computed and thrown away.
template <int width, typename T>
void pack_panel(const T* source, int64_t vector_stride, int64_t depth_stride, int64_t count, int64_t depth,
                float* __restrict__ target) {
  if (count < width) std::fill(target, target + depth * width, 0.0f);
  if (vector_stride == 1) {
    if (count == width) {
      for (int64_t l = 0; l < depth; ++l)
        opforge::convert_to_float(source + l * depth_stride, target + l * width, width);
    } else {
      for (int64_t l = 0; l < depth; ++l)
        opforge::convert_to_float(source + l * depth_stride, target + l * width, count);
    }
  } else if (depth_stride == 1) {
    alignas(64) float chunk[width][kMostLanes];
    for (int64_t l = 0; l < depth; l += kMostLanes) {
      const int64_t now = std::min<int64_t>(kMostLanes, depth - l);
      for (int64_t i = 0; i < count; ++i)
        opforge::convert_to_float(source + i * vector_stride + l, chunk[i], now);
      for (int64_t d = 0; d < now; ++d)
        for (int64_t i = 0; i < count; ++i) target[(l + d) * width + i] = chunk[i][d];
    }
  } else {
    for (int64_t l = 0; l < depth; ++l)
      for (int64_t i = 0; i < count; ++i)
        target[l * width + i] = opforge::load_as_float(source[i * vector_stride + l * depth_stride]);
  }
}

// Where sums of earlier terms wait, and where the finished ones go.
template <typename T>
struct Target {
  Matrix<float> partial;
  Matrix<T> out;
  bool first, last;
};

// Adds a register tile to what earlier terms gave, and stores it; after the last term, rounded to the output's dtype.
template <int width, typename T>
inline void store_tile(float* sums, const Target<T>& target, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    float* line = sums + i * width;
    if (!target.first) {
      const float* before = target.partial.data + (row + i) * target.partial.row + col;
      for (int64_t j = 0; j < cols; ++j) line[j] += before[j];
    }
    if (!target.last) {
      __builtin_memcpy(target.partial.data + (row + i) * target.partial.row + col, line, cols * sizeof(float));
    } else if (target.out.col == 1) {
      opforge::convert_from_float(line, target.out.data + (row + i) * target.out.row + col, cols);
    } else {
      for (int64_t j = 0; j < cols; ++j)
        target.out.data[(row + i) * target.out.row + (col + j) * target.out.col] = opforge::store_from_float<T>(line[j]);
    }
  }
}

template <typename Tile, typename T>
void matmul_blocked(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, int64_t m, int64_t n, int64_t k) {
  constexpr int kTileRows = Tile::kRows, kTileCols = Tile::kCols;
  constexpr int64_t kBlockRows = static_cast<int64_t>(BLOCK) * kTileRows, kStripCols = round_up(STRIP, kTileCols);
  const int64_t strip = std::min(kStripCols, round_up(n, kTileCols));
  const int64_t depth_most = std::min(kDepth, k);
  Buffer packed_b(depth_most * strip);
  // float32 results that lie in rows hold their own partial sums
  const bool in_place = std::is_same<T, float>::value && c.col == 1;
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
      opforge::parallel_for(0, panels, 1 + 65536 / (depth * kTileCols), [&](int64_t first, int64_t last) {
        for (int64_t p = first; p < last; ++p)
          pack_panel<kTileCols>(b.data + l0 * b.row + (j0 + p * kTileCols) * b.col, b.col, b.row,
                                std::min<int64_t>(kTileCols, cols - p * kTileCols), depth,
                                packed_b.get() + p * kTileCols * depth);
      });
      Target<T> target{{spare ? partial.get() : reinterpret_cast<float*>(c.data) + j0, spare ? strip : c.row, 1},
                       {c.data + j0 * c.col, c.row, c.col},
                       l0 == 0,
                       l0 + depth == k};
      const int64_t work = depth * height * cols / shares;
      opforge::parallel_for(0, blocks * shares, 1 + 65536 / work, [&](int64_t first, int64_t last) {
        Buffer packed_a(height * depth);
        int64_t packed = -1;
        for (int64_t task = first; task < last; ++task) {
          const int64_t i0 = task / shares * height, share = task % shares;
          const int64_t rows = std::min(height, m - i0);
          if (packed != i0) {
            for (int64_t i = 0; i < rows; i += kTileRows)
              pack_panel<kTileRows>(a.data + (i0 + i) * a.row + l0 * a.col, a.row, a.col,
                                    std::min<int64_t>(kTileRows, rows - i), depth, packed_a.get() + i * depth);
            packed = i0;
          }
          for (int64_t p = panels * share / shares; p < panels * (share + 1) / shares; ++p) {
            for (int64_t i = 0; i < rows; i += kTileRows) {
              alignas(64) float sums[kTileRows * kTileCols];
              Tile::multiply(packed_a.get() + i * depth, packed_b.get() + p * kTileCols * depth, depth, sums);
              store_tile<kTileCols>(sums, target, i0 + i, p * kTileCols, std::min<int64_t>(kTileRows, rows - i),
                         std::min<int64_t>(kTileCols, cols - p * kTileCols));
            }
          }
        }
      });
    }
  }
}

// The widest registers of this CPU, or those that were asked for.
int instruction_set() {
#if defined(__x86_64__)
  static const int widest = __builtin_cpu_supports("avx512f") ? 3 : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 2 : 1;
  OPFORGE_CHECK(ISA <= widest, RuntimeError, "ISA = ", ISA, " needs ", ISA == 3 ? "AVX-512" : "AVX2 and FMA", ", which this CPU lacks; use ISA = 0");
  return ISA == 0 ? widest : ISA;
#else
  OPFORGE_CHECK(ISA <= 1, RuntimeError, "ISA = ", ISA, " is for x86-64; use ISA = 0");
  return 1;
#endif
}

// A few rows of a against b stored in rows: every element of b is used so seldom that packing it would cost more.
constexpr int64_t kFewRows = 4;

template <typename T>
void matmul_few_rows(Matrix<const T> a, Matrix<const T> b, Matrix<T> c, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kChunk = 256, kTogether = 4;
  const int64_t chunks = round_up(n, kChunk) / kChunk;
  opforge::parallel_for(0, chunks, 1 + 65536 / (kChunk * k), [&](int64_t first, int64_t last) {
    alignas(64) float sums[kFewRows][kChunk], lines[kTogether][kChunk];
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t j0 = chunk * kChunk, cols = std::min(kChunk, n - j0);
      for (int64_t i = 0; i < m; ++i) std::fill(sums[i], sums[i] + kChunk, 0.0f);
      for (int64_t l0 = 0; l0 < k; l0 += kTogether) {
        const int64_t together = std::min(kTogether, k - l0);
        for (int64_t l = 0; l < together; ++l) opforge::convert_to_float(b.data + (l0 + l) * b.row + j0, lines[l], cols);
        for (int64_t i = 0; i < m; ++i) {
          const T* row = a.data + i * a.row + l0 * a.col;
          if (together == kTogether) {
            const float a0 = opforge::load_as_float(row[0]), a1 = opforge::load_as_float(row[a.col]);
            const float a2 = opforge::load_as_float(row[2 * a.col]), a3 = opforge::load_as_float(row[3 * a.col]);
            for (int64_t j = 0; j < cols; ++j)
              sums[i][j] += (a0 * lines[0][j] + a1 * lines[1][j]) + (a2 * lines[2][j] + a3 * lines[3][j]);
          } else {
            for (int64_t l = 0; l < together; ++l) {
              const float value = opforge::load_as_float(row[l * a.col]);
              for (int64_t j = 0; j < cols; ++j) sums[i][j] += value * lines[l][j];
            }
          }
        }
      }
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < cols; ++j)
          c.data[i * c.row + (j0 + j) * c.col] = opforge::store_from_float<T>(sums[i][j]);
    }
  });
}

template <typename T>
void matmul_any(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  const int64_t m = c.size(0), n = c.size(1), k = a.size(1);
  const Matrix<T> out{opforge::data<T>(c), c.stride(0), c.stride(1)};
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) out.data[i * out.row + j * out.col] = T(0.0f);
    return;
  }
  const Matrix<const T> left{opforge::data<const T>(a), a.stride(0), a.stride(1)};
  const Matrix<const T> right{opforge::data<const T>(b), b.stride(0), b.stride(1)};
  if (m <= kFewRows && right.col == 1) {
    return matmul_few_rows<T>(left, right, out, m, n, k);
  }
  switch (instruction_set()) {
#if defined(__x86_64__)
    case 3: return matmul_blocked<Avx512Tile>(left, right, out, m, n, k);
    case 2: return matmul_blocked<Avx2Tile>(left, right, out, m, n, k);
#endif
    default: return matmul_blocked<PlainTile>(left, right, out, m, n, k);
  }
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c) {
  OPFORGE_CHECK_NDIM(a, 2);
  OPFORGE_CHECK_NDIM(b, 2);
  OPFORGE_CHECK_NDIM(c, 2);
  OPFORGE_CHECK(a.size(1) == b.size(0) && a.size(0) == c.size(0) && b.size(1) == c.size(1), ValueError,
                "a must be m x k, b k x n and c m x n");
  OPFORGE_CHECK_SAME_DTYPE(a, b);
  OPFORGE_CHECK_SAME_DTYPE(a, c);
  if (c.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(a, T, matmul_any<T>(a, b, c));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
