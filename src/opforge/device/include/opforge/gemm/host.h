// opforge/gemm/host.h - the product of two matrices on a CPU: packed panels that stay in cache, and a register tile of float32 sums.
//
// An epilogue is `epilogue(line, matrix, row, col, cols)`: it changes `cols` float32 results of one row in place, beginning at
// column col, before they are rounded and stored.
//
// source    Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008;
//           the loop order is that of Van Zee and van de Geijn, BLIS, ACM TOMS 41(3), 2015
#ifndef OPFORGE_GEMM_HOST_H_
#define OPFORGE_GEMM_HOST_H_

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>

#include "opforge/arch/host_lanes.h"
#include "opforge/gemm/matrix.h"

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

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

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
struct Elements {
  T* data;
  int64_t row, col;

  Elements at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
};

template <typename T>
Elements<T> elements_of(const Matrix& matrix, int64_t number) {
  return {matrix.typed<T>() + number * matrix.batch_stride, matrix.row, matrix.col};
}

// As many vectors as each has floats, transposed: every step deals the lower and the upper half of them like two hands of cards.
inline void transpose(detail::Floats (&rows)[detail::kLanes]) {
  constexpr int kLanes = detail::kLanes, kHalf = kLanes / 2;
  typedef int Order __attribute__((vector_size(4 * kLanes)));
  Order lower, upper;
  for (int k = 0; k < kLanes; ++k) {
    lower[k] = k / 2 + k % 2 * kLanes;
    upper[k] = lower[k] + kHalf;
  }
#pragma GCC unroll 4
  for (int step = 1; step < kLanes; step *= 2) {
    detail::Floats dealt[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kHalf; ++i) {
      dealt[2 * i] = __builtin_shuffle(rows[i], rows[i + kHalf], lower);
      dealt[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kHalf], upper);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = dealt[i];
  }
}

// As many elements as a register has floats, in order, without a way through memory: a register cannot be loaded from two stores.
template <typename T>
inline detail::Floats lanes_of(const T* source) {
  if constexpr (std::is_same<T, float>::value) {
    return detail::load_vector<detail::Floats>(source);
  } else if constexpr (std::is_same<T, Float16>::value) {
    return detail::widen_lanes(source);
  } else if constexpr (std::is_same<T, BFloat16>::value) {
    typedef uint16_t Halves __attribute__((vector_size(2 * detail::kLanes)));
    return (detail::Floats)(__builtin_convertvector(detail::load_vector<Halves>(source), detail::Bits) << 16);
  } else {
    detail::Floats values;
    for (int k = 0; k < detail::kLanes; ++k) values[k] = load_as_float(source[k]);
    return values;
  }
}

// Packs `count` <= width vectors of `depth` elements so that target[l * width + i] is element l of vector i, as float.
// Vectors that do not exist are zero: their sums are computed and thrown away.
template <int width, typename T>
void pack_panel(const T* source, int64_t vector_stride, int64_t depth_stride, int64_t count, int64_t depth,
                float* __restrict__ target) {
  constexpr int kLanes = detail::kLanes;
  if (width == 1 && depth_stride == 1) return convert_to_float(source, target, depth);
  if (vector_stride == 1) {
    if (count < width) std::fill(target, target + depth * width, 0.0f);
    if (count == width) {
      for (int64_t l = 0; l < depth; ++l) convert_to_float(source + l * depth_stride, target + l * width, width);
    } else {
      for (int64_t l = 0; l < depth; ++l) convert_to_float(source + l * depth_stride, target + l * width, count);
    }
    return;
  }
  int64_t begin = 0;
  if (depth_stride == 1) {
    // squares of as many elements as a register has floats
    for (; begin + kLanes <= depth; begin += kLanes) {
#pragma GCC unroll 4
      for (int first = 0; first < width; first += kLanes) {
        const int64_t there = std::min<int64_t>(kLanes, count - first);
        detail::Floats rows[kLanes] = {};
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          if (i < there) rows[i] = lanes_of(source + (first + i) * vector_stride + begin);
        transpose(rows);
        float* line = target + begin * width + first;
        // where a register has more floats than a line, the next lines, written later, lie behind it; but not behind the panel
        const int64_t room = (depth - begin) * width;
#pragma GCC unroll 16
        for (int d = 0; d < kLanes; ++d) {
          if (first + kLanes <= width || (width < kLanes && d * width + kLanes <= room)) {
            detail::store_vector(line + d * width, rows[d]);
          } else {
            __builtin_memcpy(line + d * width, &rows[d], std::min(kLanes, width - first) * sizeof(float));
          }
        }
      }
    }
  }
  if (count < width) std::fill(target + begin * width, target + depth * width, 0.0f);
  for (int64_t l = begin; l < depth; ++l)
    for (int64_t i = 0; i < count; ++i)
      target[l * width + i] = load_as_float(source[i * vector_stride + l * depth_stride]);
}

// An operand as the vectors that are packed, rows of a or columns of b. Another kind of operand has a `pack` like this one:
// `count` vectors from number `first` on, `terms` of their elements from `start` on, as pack_panel leaves them.
template <typename T>
struct Vectors {
  const T* data;
  int64_t vector, depth;  // strides

  template <int width>
  void pack(int64_t first, int64_t start, int64_t count, int64_t terms, float* target) const {
    pack_panel<width>(data + first * vector + start * depth, vector, depth, count, terms, target);
  }
};

// Rounds a part of one row to the output's dtype.
template <typename T>
inline void store_line(const float* line, const Elements<T>& out, int64_t row, int64_t col, int64_t cols) {
  T* target = out.data + row * out.row + col * out.col;
  if (out.col == 1) return convert_from_float(line, target, cols);
  for (int64_t j = 0; j < cols; ++j) target[j * out.col] = store_from_float<T>(line[j]);
}

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

// The widest registers of this CPU, or those that were asked for.
template <int isa>
int instruction_set() {
#if defined(__x86_64__)
  static const int widest = __builtin_cpu_supports("avx512f") ? 3 : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 2 : 1;
  OPFORGE_CHECK(isa <= widest, RuntimeError, "ISA = ", isa, " needs ", isa == 3 ? "AVX-512" : "AVX2 and FMA", ", which this CPU lacks; use ISA = 0");
  return isa == 0 ? widest : isa;
#else
  OPFORGE_CHECK(isa <= 1, RuntimeError, "ISA = ", isa, " is for x86-64; use ISA = 0");
  return 1;
#endif
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

// How many threads a product is shared out to.
inline int64_t max_threads() {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

constexpr int64_t kFewRows = 4, kChunk = 2048;

// sums[i][j] += a[i][l] * b[l][j] for the next terms of a few rows and a chunk of columns. Even and odd terms are added up by themselves.
template <int terms, typename T>
void add_terms(Elements<const T> a, Elements<const T> b, int64_t rows, int64_t cols, float (*sums)[kChunk]) {
  constexpr int kLanes = detail::kLanes;
  float values[kFewRows][terms];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t l = 0; l < terms; ++l) values[i][l] = load_as_float(a.data[i * a.row + l * a.col]);
  for (int64_t j = 0; j < cols; j += kLanes) {
    detail::Floats lines[terms];
#pragma GCC unroll 8
    for (int l = 0; l < terms; ++l) {
      const T* source = b.data + l * b.row + j;
      T part[kLanes] = {};
      if (cols - j < kLanes) source = static_cast<const T*>(__builtin_memcpy(part, source, (cols - j) * sizeof(T)));
      lines[l] = lanes_of(source);
    }
    for (int64_t i = 0; i < rows; ++i) {
      detail::Floats sum[2] = {};
#pragma GCC unroll 8
      for (int l = 0; l < terms; ++l) sum[l % 2] += values[i][l] * lines[l];
      detail::store_vector(sums[i] + j, detail::load_vector<detail::Floats>(sums[i] + j) + (sum[0] + sum[1]));
    }
  }
}

// A few rows of a against b stored in rows: every element of b is used so seldom that packing it would cost more. Threads go over
// pieces of its rows that are as long as the sums of a few rows may be: short ones, each in another page, come half as fast.
template <typename T, typename TOut, typename Epilogue>
void multiply_few_rows(Elements<const T> a, Elements<const T> b, Elements<TOut> c, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
  constexpr int kTogether = 8;
  const int64_t shares = round_up(n / kChunk + 1, max_threads());
  const int64_t width = std::max<int64_t>(256, round_up((n + shares - 1) / shares, 64));
  parallel_for(0, round_up(n, width) / width, 1 + 65536 / (width * std::max<int64_t>(1, k)), [&](int64_t first, int64_t last) {
    alignas(64) float sums[kFewRows][kChunk];
    for (int64_t j0 = first * width; j0 < std::min(n, last * width); j0 += width) {
      const int64_t cols = std::min(width, n - j0);
      for (int64_t i = 0; i < m; ++i) std::fill(sums[i], sums[i] + round_up(cols, detail::kLanes), 0.0f);
      int64_t l = 0;
      for (; l + kTogether <= k; l += kTogether) add_terms<kTogether>(a.at(0, l), b.at(l, j0), m, cols, sums);
      for (; l < k; ++l) add_terms<1>(a.at(0, l), b.at(l, j0), m, cols, sums);
      for (int64_t i = 0; i < m; ++i) {
        epilogue(sums[i], i, j0, cols);
        store_line(sums[i], c, i, j0, cols);
      }
    }
  });
}

template <typename B, typename T, typename TOut, typename Epilogue>
void multiply_one(Elements<const T> a, Elements<const T> b, Elements<TOut> c, int64_t m, int64_t n, int64_t k, const Epilogue& epilogue) {
  // an empty sum is one of no terms: the loop over panels would not store it
  if (k == 0) {
    for (int64_t i = 0; i < m; i += kFewRows)
      multiply_few_rows(a, b, c.at(i, 0), std::min(kFewRows, m - i), n, k,
                        [&](float* line, int64_t row, int64_t col, int64_t cols) { epilogue(line, i + row, col, cols); });
    return;
  }
  if (m <= kFewRows && b.col == 1) return multiply_few_rows(a, b, c, m, n, k, epilogue);
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
