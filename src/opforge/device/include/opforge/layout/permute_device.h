// opforge/layout/permute_device.h - data moved, not computed with: transposition of matrices through shared memory, and
// exchange of two middle axes in vectors.
#ifndef OPFORGE_PERMUTE_DEVICE_H_
#define OPFORGE_PERMUTE_DEVICE_H_

#include "opforge/elementwise/broadcast_device.h"
#include "opforge/layout/permute_axes.h"

namespace opforge {

constexpr int kTransposeThreads = 256;

/// Rows and columns of a tile: 256 bytes of each row, so that the memory's pages are used well on both sides.
template <typename T>
constexpr int kTransposeSide = 256 / sizeof(T);

// One tile, in shared memory with rows one 32-bit word longer than they need be.  It is read along columns by lanes that
// take 32 rows of neighbouring words, so that each meets a bank of its own.
// In, Out: elements read and written with one access; rows of the input, or of the output, must begin on that boundary.
template <typename T, int In, int Out>
__global__ void __launch_bounds__(kTransposeThreads) transpose_tiles(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int64_t cols, Divider across, Divider per_matrix) {
  constexpr int S = kTransposeSide<T>, kPerWord = 4 / sizeof(T), kPitch = S + kPerWord;
  __shared__ __align__(16) T tile[S * kPitch];
  const uint32_t matrix = per_matrix.divide(blockIdx.x), place = blockIdx.x - matrix * per_matrix.divisor;
  const uint32_t down = across.divide(place);
  const int64_t row0 = int64_t(down) * S, col0 = int64_t(place - down * across.divisor) * S;
  const T* from = x + int64_t(matrix) * rows * cols;
  T* to = y + int64_t(matrix) * rows * cols;

  // eight of 8 bytes at once spill on sm_80, and four blocks to an SM keep enough on the way with four
  constexpr int kReads = S * S / In / kTransposeThreads, kMost = In * sizeof(T) == 8 ? 4 : 8, kAtOnce = kReads < kMost ? kReads : kMost, kReadLanes = S / In;
  for (int first = 0; first < kReads; first += kAtOnce) {
    Vec<T, In> v[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = (first + u) * kTransposeThreads + threadIdx.x, r = i / kReadLanes, c = i % kReadLanes * In;
      if (row0 + r < rows && col0 + c < cols) v[u] = load_once<T, In>(from + (row0 + r) * cols + col0 + c);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = (first + u) * kTransposeThreads + threadIdx.x, r = i / kReadLanes, c = i % kReadLanes * In;
      if constexpr (In < kPerWord) {
        tile[r * kPitch + c] = v[u][0];
      } else {
#pragma unroll
        for (int j = 0; j < In; j += kPerWord) *reinterpret_cast<uint32_t*>(tile + r * kPitch + c + j) = *reinterpret_cast<const uint32_t*>(v[u].v + j);
      }
    }
  }
  __syncthreads();
  constexpr int kLanes = kWarpSize / Out, kUnits = kWarpSize / kLanes, kStrips = S / kWarpSize;
  constexpr int kWrites = S * S / (Out * kPerWord) / kTransposeThreads;
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll 2
  for (int u = 0; u < kWrites; ++u) {
    const int strip = u * (kTransposeThreads / kWarpSize) + static_cast<int>(threadIdx.x) / kWarpSize;
    const int r = strip % kStrips * kWarpSize + lane % kLanes * Out, c = (strip / kStrips * kUnits + lane / kLanes) * kPerWord;
    if (row0 + r >= rows || col0 + c >= cols) continue;
    Vec<T, Out> column[kPerWord];
#pragma unroll
    for (int j = 0; j < Out; ++j) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(tile + (r + j) * kPitch + c);
#pragma unroll
      for (int k = 0; k < kPerWord; ++k) column[k][j] = static_cast<T>(word >> (8 * sizeof(T) * k));
    }
#pragma unroll
    for (int k = 0; k < kPerWord; ++k)
      if (col0 + c + k < cols) column[k].store_global(to + (col0 + c + k) * rows + row0 + r);
  }
}

/// The most rows, or columns, of a matrix that is moved in strips.
constexpr int64_t kNarrow = 48;
constexpr int kStripElements = 6144;

// Matrices with few rows: a strip of `wide` columns, all of whose elements are neighbours in y.
template <typename T, int In, int Out>
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_few_rows(const T* __restrict__ x, T* __restrict__ y, int rows, int64_t cols, int wide, Divider row_reads, Divider rows_divider, Divider strips) {
  __shared__ __align__(16) T tile[kStripElements + 2 * kNarrow];
  const int pitch = wide + 2;
  const uint32_t matrix = strips.divide(blockIdx.x);
  const int64_t col0 = int64_t(blockIdx.x - matrix * strips.divisor) * wide, base = int64_t(matrix) * rows * cols;
  const int here = cols - col0 < wide ? static_cast<int>(cols - col0) : wide;
  for (int i = threadIdx.x; i < rows * (wide / In); i += kTransposeThreads) {
    const int r = row_reads.divide(i), c = (i - r * static_cast<int>(row_reads.divisor)) * In;
    if (c >= here) continue;
    const auto v = load_once<T, In>(x + base + r * cols + col0 + c);
#pragma unroll
    for (int j = 0; j < In; ++j) tile[r * pitch + c + j] = v[j];
  }
  __syncthreads();
  T* to = y + base + col0 * rows;
  for (int i = threadIdx.x * Out; i < here * rows; i += kTransposeThreads * Out) {
    int c = rows_divider.divide(i), r = i - c * rows;
    Vec<T, Out> v;
#pragma unroll
    for (int j = 0; j < Out; ++j) {
      v[j] = tile[r * pitch + c];
      if (++r == rows) r = 0, ++c;
      if (c >= here) c = 0;  // past the end: read anything, store nothing
    }
    if (i + Out <= here * rows) {
      v.store_global(to + i);
    } else {
      for (int j = 0; j < here * rows - i; ++j) to[i + j] = v[j];
    }
  }
}

// Matrices with few columns: a strip of `tall` rows, all of whose elements are neighbours in x.
template <typename T, int In, int Out>
__global__ void __launch_bounds__(kTransposeThreads)
    transpose_few_cols(const T* __restrict__ x, T* __restrict__ y, int64_t rows, int cols, int tall, Divider col_writes, Divider cols_divider, Divider strips) {
  __shared__ __align__(16) T tile[kStripElements + 2 * kNarrow];
  const int pitch = tall + 2;
  const uint32_t matrix = strips.divide(blockIdx.x);
  const int64_t row0 = int64_t(blockIdx.x - matrix * strips.divisor) * tall, base = int64_t(matrix) * rows * cols;
  const int here = rows - row0 < tall ? static_cast<int>(rows - row0) : tall;
  const T* from = x + base + row0 * cols;
  for (int i = threadIdx.x * In; i < here * cols; i += kTransposeThreads * In) {
    Vec<T, In> v;
    if (i + In <= here * cols) {
      v = load_once<T, In>(from + i);
    } else {
      for (int j = 0; j < here * cols - i; ++j) v[j] = from[i + j];
    }
    int r = cols_divider.divide(i), c = i - r * cols;
#pragma unroll
    for (int j = 0; j < In; ++j) {
      if (r < here) tile[c * pitch + r] = v[j];
      if (++c == cols) c = 0, ++r;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < cols * (tall / Out); i += kTransposeThreads) {
    const int c = col_writes.divide(i), r = (i - c * static_cast<int>(col_writes.divisor)) * Out;
    if (r >= here) continue;
    Vec<T, Out> v;
#pragma unroll
    for (int j = 0; j < Out; ++j) v[j] = tile[c * pitch + r + j];
    v.store_global(y + base + c * rows + row0 + r);
  }
}

namespace detail {

/// The most elements that one access can move where rows of `cols` elements begin at p: 16 bytes, 8, 4 or one element.
template <typename T>
inline int access_width(const T* p, int64_t cols) {
  int n = kVecSize<T>;
  while (n > 1 && (cols % n != 0 || reinterpret_cast<uintptr_t>(p) % (n * sizeof(T)) != 0)) n /= 2;
  return n;
}

}  // namespace detail

/// Transposes `matrices` contiguous matrices of rows x cols.
template <typename T>
inline void transpose(cudaStream_t stream, const T* x, T* y, int64_t matrices, int64_t rows, int64_t cols) {
  if (matrices == 0 || rows == 0 || cols == 0) return;
  constexpr int N = kVecSize<T>;
  constexpr int64_t S = kTransposeSide<T>;
  const bool few_rows = rows <= kNarrow && rows < cols, few_cols = !few_rows && cols <= kNarrow;
  const int64_t narrow = few_rows ? rows : cols, length = few_rows ? cols : rows;
  // a strip is a whole number of vectors long, so that the next one begins aligned
  const int64_t fits = kStripElements / (narrow < 6 ? 6 : narrow) / 64 * 64, strip = fits < 64 ? 64 : fits;
  const int64_t down = ceil_div(rows, S), across = ceil_div(cols, S);
  const int64_t blocks = few_rows || few_cols ? ceil_div(length, strip) : down * across;
  OPFORGE_CHECK(blocks < int64_t(1) << 31, ValueError, "one matrix is too large for a launch: split it");
  // as many matrices at once as 31 bits can count the blocks of
  const int64_t most = ((int64_t(1) << 31) - 1) / blocks;
  const int reads = detail::access_width(x, cols), writes = detail::access_width(y, rows);
  const bool flat_reads = can_vectorize(x, rows * cols), flat_writes = can_vectorize(y, rows * cols);
  for (int64_t done = 0; done < matrices; done += most) {
    const int64_t now = matrices - done < most ? matrices - done : most;
    const T* from = x + done * rows * cols;
    T* to = y + done * rows * cols;
    const auto tiles = [&](auto kernel) {
      OPFORGE_LAUNCH(kernel, static_cast<unsigned>(now * blocks), kTransposeThreads, 0, stream, from, to, rows, cols, Divider(across), Divider(blocks));
    };
    const auto from_rows = [&](auto kernel, int in) {
      OPFORGE_LAUNCH(kernel, static_cast<unsigned>(now * blocks), kTransposeThreads, 0, stream, from, to, static_cast<int>(rows), cols, static_cast<int>(strip),
                     Divider(strip / in), Divider(rows), Divider(blocks));
    };
    const auto from_cols = [&](auto kernel, int out) {
      OPFORGE_LAUNCH(kernel, static_cast<unsigned>(now * blocks), kTransposeThreads, 0, stream, from, to, rows, static_cast<int>(cols), static_cast<int>(strip),
                     Divider(strip / out), Divider(cols), Divider(blocks));
    };
    if (few_rows) {
      if (reads == N && flat_writes)
        from_rows(transpose_few_rows<T, N, N>, N);
      else if (flat_writes)
        from_rows(transpose_few_rows<T, 1, N>, 1);
      else
        from_rows(transpose_few_rows<T, 1, 1>, 1);
    } else if (few_cols) {
      if (writes == N && flat_reads)
        from_cols(transpose_few_cols<T, N, N>, N);
      else if (flat_reads)
        from_cols(transpose_few_cols<T, N, 1>, 1);
      else
        from_cols(transpose_few_cols<T, 1, 1>, 1);
    } else if (reads == N && writes == N) {
      tiles(transpose_tiles<T, N, N>);
    } else if (reads == N) {
      writes == N / 2 ? tiles(transpose_tiles<T, N, N / 2>) : tiles(transpose_tiles<T, N, 1>);
    } else if (writes == N) {
      reads == N / 2 ? tiles(transpose_tiles<T, N / 2, N>) : tiles(transpose_tiles<T, 1, N>);
    } else if (reads == N / 2 && writes == N / 2) {
      tiles(transpose_tiles<T, N / 2, N / 2>);
    } else {
      tiles(transpose_tiles<T, 1, 1>);
    }
  }
}

// y[o][b][a][w] = x[o][a][b][w], in vectors of N elements: w counts vectors, and so do all sizes.
template <typename T, int N, int Threads, int Unroll>
__global__ void __launch_bounds__(Threads)
    exchange_vectors(const T* __restrict__ x, T* __restrict__ y, uint32_t vectors, Divider width, Divider a_size, Divider b_size) {
  const uint32_t tile = blockIdx.x * (Threads * Unroll) + threadIdx.x;
  Vec<T, N> v[Unroll];
#pragma unroll
  for (int u = 0; u < Unroll; ++u) {
    const uint32_t i = tile + u * Threads;
    if (i >= vectors) break;
    const uint32_t oba = width.divide(i), w = i - oba * width.divisor;
    const uint32_t ob = a_size.divide(oba), a = oba - ob * a_size.divisor;
    const uint32_t o = b_size.divide(ob), b = ob - o * b_size.divisor;
    const int64_t from = int64_t((o * a_size.divisor + a) * b_size.divisor + b) * width.divisor + w;
    v[u] = load_once<T, N>(x + from * N);
  }
#pragma unroll
  for (int u = 0; u < Unroll; ++u) {
    const uint32_t i = tile + u * Threads;
    if (i >= vectors) break;
    v[u].store_global(y + int64_t(i) * N);
  }
}

/// y[o][b][a][w] = x[o][a][b][w] for contiguous tensors of outer x first x second x width.
template <typename T>
inline void exchange_middle(cudaStream_t stream, const T* x, T* y, int64_t outer, int64_t first, int64_t second, int64_t width) {
  if (outer * first * second * width == 0) return;
  constexpr int N = kVecSize<T>;
  constexpr int kThreads = 256, kUnroll = 4;
  const bool whole = can_vectorize(x, width) && can_vectorize(y, width);
  const int64_t each = first * second * (whole ? width / N : width);
  OPFORGE_CHECK(each < int64_t(1) << 31, ValueError, "one outer slice is too large for a launch: split it");
  const int64_t most = ((int64_t(1) << 31) - 1) / each;
  for (int64_t done = 0; done < outer; done += most) {
    const int64_t now = outer - done < most ? outer - done : most, skipped = done * first * second * width;
    const auto launch = [&](auto kernel, int64_t wide) {
      OPFORGE_LAUNCH(kernel, static_cast<unsigned>(ceil_div(now * each, kThreads * kUnroll)), kThreads, 0, stream, x + skipped, y + skipped,
                     static_cast<uint32_t>(now * each), Divider(wide), Divider(first), Divider(second));
    };
    if (whole)
      launch(exchange_vectors<T, N, kThreads, kUnroll>, width / N);
    else
      launch(exchange_vectors<T, 1, kThreads, kUnroll>, width);
  }
}

/// y[m, c, r] = x[m, r, c] for tensors of three axes. A template, so that a file compiles the kernels that it calls and no others. Raises ValueError or TypeError where they do not fit together.
template <typename View>
inline void transpose_tensors(const View& x, const View& y) {
  check_exchanged(x, y, 3, 1);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_BITS(x, T, transpose(current_stream(x), data<const T>(x), data<T>(y), x.size(0), x.size(1), x.size(2)));
}

/// y[l, d, b, a, w] = x[l, d, a, b, w] for tensors of five axes. A template for the same reason. Raises ValueError or TypeError where they do not fit together.
template <typename View>
inline void exchange_tensors(const View& x, const View& y) {
  check_exchanged(x, y, 5, 2);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_BITS(x, T, exchange_middle(current_stream(x), data<const T>(x), data<T>(y), x.size(0) * x.size(1), x.size(2), x.size(3), x.size(4)));
}

}  // namespace opforge

#endif  // OPFORGE_PERMUTE_DEVICE_H_
