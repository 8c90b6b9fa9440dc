// opforge/gemm/host_tile.h - a register tile of float32 sums on a CPU, and the panels that are packed for it.
//
// source    Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008
#ifndef OPFORGE_GEMM_HOST_TILE_H_
#define OPFORGE_GEMM_HOST_TILE_H_

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>

#include "opforge/arch/host_lanes.h"
#include "opforge/gemm/matrix.h"

namespace opforge {
namespace gemm {

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

// How many threads a product is shared out to.
inline int64_t max_threads() {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

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

// Rounds a part of one row to the output's dtype.
template <typename T>
inline void store_line(const float* line, const Elements<T>& out, int64_t row, int64_t col, int64_t cols) {
  T* target = out.data + row * out.row + col * out.col;
  if (out.col == 1) return convert_from_float(line, target, cols);
  for (int64_t j = 0; j < cols; ++j) target[j * out.col] = store_from_float<T>(line[j]);
}

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

}  // namespace gemm
}  // namespace opforge

#endif  // OPFORGE_GEMM_HOST_TILE_H_
