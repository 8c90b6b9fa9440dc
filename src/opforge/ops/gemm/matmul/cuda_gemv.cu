// A matrix times a vector: 16 bytes a lane from several lines at once, k split among blocks, parts added up in a fixed order.
//
// moves     the matrix once, the vector once for each block from the second-level cache, PARTS * lines sums in float32
// idea      what limits is how many bytes are under way (Little's law: about 32 KB on every multiprocessor for 4.5 TB/s at 900 ns).  A warp
//           takes LINES lines of the matrix and asks for UNROLL 16-byte pieces of each before it uses the first, no shared memory, no
//           barrier: at 32 warps on a multiprocessor 32 * 32 * LINES * UNROLL * 16 bytes
// code      two loops for the two ways in which the matrix may lie: terms side by side (a warp adds up along its line), or results side by
//           side (a lane keeps eight of them, and warps share the terms out)
// precision float32 sums; the parts of k are added in their order by a second kernel: the same bits at every call
// limits    m = 1 or n = 1. One H200: 4.26 TB/s where the matrix has 470 MB, 3.7 where it has 134 MB: launches, and parts that are added up by a second one
/* opforge
layouts = ["contiguous", "rows", "strided"]

[supports]
a_vector_and_a_matrix = "m == 1 or n == 1"

[space]
LINES = [1, 2, 4]
UNROLL = [2, 4, 8]
WARPS = [4, 8]
PARTS = [1, 2, 4, 8, 16, 32]

[default]
LINES = 2
UNROLL = 4
WARPS = 8
PARTS = 16

[limits]
pieces_fit_registers = "LINES * UNROLL <= 16"
every_part_has_terms = "PARTS == 1 or PARTS <= k"
*/
#include "opforge/gemm/common.h"
#include "opforge/arch/packed.h"
#include "opforge/arch/scratch.h"

#include <algorithm>

// Tunable: lines of a warp, pieces of each under way, warps of a block, parts of k.
#ifndef LINES
#define LINES 2
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef PARTS
#define PARTS 16
#endif

namespace {

using opforge::Matrix;

constexpr int kThreads = 32 * WARPS;

// The matrix seen from the results: result i is the sum over l of w[i, l] * x[l]. Strides in elements.
template <typename T>
struct Problem {
  const T *w, *x;
  int64_t line, term, x_step;  // from one result's terms to the next one's, from a term to the next, of the vector
  int results, terms;
  int part_terms;              // terms of a part, a multiple of 16 bytes
  bool vectors;                // 16-byte pieces may be loaded along the contiguous direction
};

template <typename T>
__device__ __forceinline__ float vector_at(const Problem<T>& p, int term) { return opforge::load_as_float(p.x[term * p.x_step]); }

// Terms side by side: a warp walks LINES lines together, 32 lanes times 16 bytes of each at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) gemv_along_terms(Problem<T> p, float* __restrict__ sums) {
  constexpr int kPiece = opforge::kVecSize<T>, kStep = 32 * kPiece;
  const int lane = threadIdx.x % 32;
  const int first = (static_cast<int>(blockIdx.x) * WARPS + static_cast<int>(threadIdx.x) / 32) * LINES;
  const int part = blockIdx.y, begin = part * p.part_terms, end = min(p.terms, begin + p.part_terms);
  if (first >= p.results) return;
  float total[LINES] = {};
  const T* line[LINES];
#pragma unroll
  // a line that does not exist reads the last one again; its sum is thrown away
  for (int i = 0; i < LINES; ++i) line[i] = p.w + min(first + i, p.results - 1) * p.line;
  int at = begin;
  if (p.vectors) {
    for (; at + UNROLL * kStep <= end; at += UNROLL * kStep) {
      opforge::Packed<T, kPiece> held[UNROLL][LINES];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int i = 0; i < LINES; ++i) held[u][i] = opforge::Packed<T, kPiece>::load_once(line[i] + at + u * kStep + lane * kPiece);
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        float factor[kPiece];
#pragma unroll
        for (int j = 0; j < kPiece; ++j) factor[j] = vector_at(p, at + u * kStep + lane * kPiece + j);
#pragma unroll
        for (int i = 0; i < LINES; ++i) {
          float value[kPiece];
          held[u][i].unpack(value);
#pragma unroll
          for (int j = 0; j < kPiece; ++j) total[i] = fmaf(value[j], factor[j], total[i]);
        }
      }
    }
  }
  for (int term = at + lane; term < end; term += 32) {
    const float factor = vector_at(p, term);
#pragma unroll
    for (int i = 0; i < LINES; ++i) total[i] = fmaf(opforge::load_as_float(line[i][term * p.term]), factor, total[i]);
  }
#pragma unroll
  for (int i = 0; i < LINES; ++i) {
    const float sum = opforge::warp_reduce_sum(total[i]);
    if (lane == 0 && first + i < p.results) sums[static_cast<int64_t>(part) * p.results + first + i] = sum;
  }
}

// Results side by side: a lane keeps 16 bytes' worth of them, the block's warps share the terms out and meet in shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads) gemv_along_results(Problem<T> p, float* __restrict__ sums) {
  constexpr int kPiece = opforge::kVecSize<T>, kTogether = LINES * UNROLL;
  __shared__ float shared[WARPS][32 * kPiece];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = static_cast<int>(blockIdx.x) * 32 * kPiece + lane * kPiece;
  const int part = blockIdx.y, begin = part * p.part_terms, end = min(p.terms, begin + p.part_terms);
  const bool whole = p.vectors && first + kPiece <= p.results;
  float total[kPiece] = {};
  int term = begin + warp;
  if (whole) {
    for (; term + (kTogether - 1) * WARPS < end; term += kTogether * WARPS) {
      opforge::Packed<T, kPiece> held[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) held[u] = opforge::Packed<T, kPiece>::load_once(p.w + (term + u * WARPS) * p.term + first);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const float factor = vector_at(p, term + u * WARPS);
        float value[kPiece];
        held[u].unpack(value);
#pragma unroll
        for (int j = 0; j < kPiece; ++j) total[j] = fmaf(value[j], factor, total[j]);
      }
    }
  }
  for (; term < end; term += WARPS) {
    const float factor = vector_at(p, term);
#pragma unroll
    for (int j = 0; j < kPiece; ++j)
      if (first + j < p.results) total[j] = fmaf(opforge::load_as_float(p.w[(first + j) * p.line + term * p.term]), factor, total[j]);
  }
#pragma unroll
  for (int j = 0; j < kPiece; ++j) shared[warp][lane * kPiece + j] = total[j];
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * kPiece; i += kThreads) {
    const int result = static_cast<int>(blockIdx.x) * 32 * kPiece + i;
    if (result >= p.results) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += shared[w][i];
    sums[static_cast<int64_t>(part) * p.results + result] = sum;
  }
}

// Adds the parts of every result up, in their order.
template <typename T>
__global__ void add_parts(const float* __restrict__ sums, T* __restrict__ y, int64_t y_step, int results, int parts) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= results) return;
  float total = 0.0f;
  for (int part = 0; part < parts; ++part) total += sums[static_cast<int64_t>(part) * results + i];
  y[i * y_step] = opforge::store_from_float<T>(total);
}

// y = w x for a matrix of results x terms.
template <typename T>
void gemv(const Matrix& w, const T* x, int64_t x_step, T* y, int64_t y_step, cudaStream_t stream) {
  constexpr int kPiece = opforge::kVecSize<T>;
  const bool along_results = w.row == 1 && w.col != 1;
  const T* data = w.typed<const T>();
  const int results = static_cast<int>(w.rows), terms = static_cast<int>(w.cols);
  // a part is made of whole rounds of what is under way at once, and so begins aligned as the line does
  const int64_t unit = along_results ? WARPS * LINES * UNROLL : UNROLL * 32 * kPiece;
  const int64_t part_terms = std::max<int64_t>(unit, opforge::ceil_div(opforge::ceil_div(terms, PARTS), unit) * unit);
  const int parts = static_cast<int>(std::max<int64_t>(1, opforge::ceil_div(terms, part_terms)));
  const bool vectors = along_results ? opforge::can_vectorize(data, w.col) : w.col == 1 && opforge::can_vectorize(data, w.row);
  const Problem<T> problem{data, x, w.row, w.col, x_step, results, terms, static_cast<int>(part_terms), vectors};
  const opforge::Scratch scratch(static_cast<int64_t>(parts) * results * static_cast<int64_t>(sizeof(float)), stream);
  float* sums = static_cast<float*>(scratch.data());
  if (along_results) {
    const dim3 grid(static_cast<unsigned>(opforge::ceil_div(results, 32 * kPiece)), static_cast<unsigned>(parts));
    OPFORGE_LAUNCH((gemv_along_results<T>), grid, kThreads, 0, stream, problem, sums);
  } else {
    const dim3 grid(static_cast<unsigned>(opforge::ceil_div(results, WARPS * LINES)), static_cast<unsigned>(parts));
    OPFORGE_LAUNCH((gemv_along_terms<T>), grid, kThreads, 0, stream, problem, sums);
  }
  OPFORGE_LAUNCH((add_parts<T>), static_cast<unsigned>(opforge::ceil_div(results, 256)), 256, 0, stream, sums, y, y_step, results, parts);
}

template <typename T>
void product_of(const Matrix& a, const Matrix& b, const Matrix& c, cudaStream_t stream) {
  if (c.rows == 1) return gemv<T>(b.transposed(), a.typed<const T>(), a.col, c.typed<T>(), c.col, stream);
  gemv<T>(a, b.typed<const T>(), b.row, c.typed<T>(), c.row, stream);
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  const Matrix left = OPFORGE_DEVICE_MATRIX(a), right = OPFORGE_DEVICE_MATRIX(b), out = OPFORGE_DEVICE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  OPFORGE_CHECK(out.rows == 1 || out.cols == 1, ValueError, "a or b must be a vector (c is ", out.rows, " x ", out.cols, ")");
  if (out.numel() > 0) OPFORGE_DISPATCH_DTYPE(a, T, product_of<T>(left, right, out, opforge::current_stream(a)));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
