// opforge/rows/device.h - GPU kernels that work row by row, each row read from memory once.
//
// An operator is a functor: `template <class Row> __device__ void operator()(Row& row, int64_t r)`.
// It visits the row's elements as often as it likes; launch_rows picks where they wait:
//
//   up to 1024 columns   registers of one warp, four rows to a block
//   up to 8192           registers of one block
//   up to shared memory  shared memory of one block, in the stored type
//   beyond               nowhere: every visit reads memory (the L2 cache, mostly) again
//
// Accesses are 16 bytes wide where every row begins on such a boundary, else one element.
#ifndef OPFORGE_DEVICE_ROWS_H_
#define OPFORGE_DEVICE_ROWS_H_

#include "opforge/device.h"
#include "opforge/rows/view.h"

namespace opforge {

constexpr int kWarpsPerBlock = 4;       // rows of a block when a warp takes one
constexpr int kWarpRowColumns = 1024;   // 32 registers of 32 lanes
constexpr int kBlockRowColumns = 8192;  // 8 registers of 1024 threads
constexpr int kReservedShared = 1024;   // for block_reduce, and what the driver takes

/// Loads N elements that no thread of this kernel writes.
template <typename T, int N>
__device__ __forceinline__ Vec<T, N> load_constant(const T* p) {
#ifdef OPFORGE_EMULATE
  return Vec<T, N>::load(p);
#else
  Vec<T, N> vec;
  if constexpr (sizeof(vec) == 16) {
    *reinterpret_cast<int4*>(&vec) = __ldg(reinterpret_cast<const int4*>(p));
  } else {
    static_assert(N == 1, "a Vec is 16 bytes or one element here");
    vec[0] = __ldg(p);
  }
  return vec;
#endif
}

/// The same as float.
template <typename T, int N>
__device__ __forceinline__ void load_constant(const T* p, float (&values)[N]) {
  const auto vec = load_constant<T, N>(p);
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = load_as_float(vec[j]);
}

/// Stores N floats in the stored type.
template <typename T, int N>
__device__ __forceinline__ void store_vec(T* p, const float (&values)[N]) {
  Vec<T, N> vec;
#pragma unroll
  for (int j = 0; j < N; ++j) vec[j] = store_from_float<T>(values[j]);
  vec.store_global(p);
}

/// The threads that share a row: one warp of several in the block.
struct WarpGroup {
  static constexpr int kMaxThreads = kWarpsPerBlock * kWarpSize;
  __device__ static int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpSize;
  }
  __device__ static int rank() { return threadIdx.x % kWarpSize; }
  __device__ static int size() { return kWarpSize; }
  template <class Op>
  __device__ static float reduce(float value, Op op) { return warp_reduce(value, op); }
};

/// The threads that share a row: the whole block.
struct BlockGroup {
  static constexpr int kMaxThreads = 1024;
  __device__ static int64_t row() { return blockIdx.x; }
  __device__ static int rank() { return threadIdx.x; }
  __device__ static int size() { return blockDim.x; }
  template <class Op>
  __device__ static float reduce(float value, Op op) { return block_reduce(value, op); }
};

/// A row in the registers of a group: kVecs vectors of N elements in each thread, as float.
template <typename T, int N, int kVecs, class Group>
class RegisterRow {
 public:
  /// What visit() changes stays changed.
  static constexpr bool kKeeps = true;

  __device__ __forceinline__ RegisterRow(const T* row, int64_t cols, float per_column)
      : cols_(static_cast<int>(cols)), first_(Group::rank() * N), per_column_(per_column) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * step() < cols_ - first_) load_constant<T, N>(row + first_ + i * step(), values_[i]);
    }
  }

  /// Calls f(c, values) for the N elements from column c on, for every vector of this thread.
  template <class F>
  __device__ __forceinline__ void visit(F f) {
    int left = cols_ - first_;
    // hides that this is the bound of the last visit too: the compiler would keep kVecs comparisons
    // from one visit to the next, and spill them
    asm volatile("" : "+r"(left));
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (i * step() < left) f(first_ + i * step(), values_[i]);
    }
  }
  /// Combines one value of every thread; all of them get the result.
  template <class Op>
  __device__ __forceinline__ float reduce(float value, Op op) const {
    return Group::reduce(value, op);
  }
  /// The sum of one value of every thread, divided by the number of columns.
  __device__ __forceinline__ float mean(float value) const {
    return reduce(value, Sum()) * per_column_;
  }
  /// Whether this thread writes what a row has one of.
  __device__ __forceinline__ bool leads() const { return Group::rank() == 0; }

 private:
  __device__ __forceinline__ static int step() { return Group::size() * N; }
  float values_[kVecs][N];
  int cols_, first_;
  float per_column_;
};

/// A row in shared memory, or (kShared false) left where it is. Each thread sees only what it
/// copied itself, so no barrier is needed.
template <typename T, int N, bool kShared>
class MemoryRow {
 public:
  static constexpr bool kKeeps = false;

  __device__ __forceinline__ MemoryRow(const T* row, int64_t cols, float per_column, T* buffer)
      : source_(kShared ? buffer : row), cols_(cols), per_column_(per_column) {
    if constexpr (kShared) {
      for (int64_t c = first(); c < cols; c += step()) {
        load_constant<T, N>(row + c).store(buffer + c);
      }
    }
  }

  template <class F>
  __device__ __forceinline__ void visit(F f) {
#pragma unroll 2
    for (int64_t c = first(); c < cols_; c += step()) {
      const auto vec = Vec<T, N>::load(source_ + c);
      float values[N];
#pragma unroll
      for (int j = 0; j < N; ++j) values[j] = load_as_float(vec[j]);
      f(c, values);
    }
  }
  template <class Op>
  __device__ __forceinline__ float reduce(float value, Op op) const {
    return BlockGroup::reduce(value, op);
  }
  __device__ __forceinline__ float mean(float value) const {
    return reduce(value, Sum()) * per_column_;
  }
  __device__ __forceinline__ bool leads() const { return BlockGroup::rank() == 0; }

 private:
  __device__ __forceinline__ static int64_t first() { return int64_t(threadIdx.x) * N; }
  __device__ __forceinline__ static int64_t step() { return int64_t(blockDim.x) * N; }
  const T* source_;
  int64_t cols_;
  float per_column_;
};

template <typename T, int N, int kVecs, class Group, class Op>
__global__ void __launch_bounds__(Group::kMaxThreads)
    register_rows(Op op, Rows<const T> x, float per_column) {
  const int64_t r = Group::row();
  if (r >= x.rows) return;  // a whole warp of the last block
  RegisterRow<T, N, kVecs, Group> row(x.data + r * x.stride, x.cols, per_column);
  op(row, r);
}

template <typename T, int N, bool kShared, class Op>
__global__ void __launch_bounds__(1024) memory_rows(Op op, Rows<const T> x, float per_column) {
  OPFORGE_DYNAMIC_SHARED(T, buffer);
  const int64_t r = blockIdx.x;
  MemoryRow<T, N, kShared> row(x.data + r * x.stride, x.cols, per_column, buffer);
  op(row, r);
}

/// Bytes of dynamic shared memory that a block of the current device may ask for.
inline int64_t max_dynamic_shared() {
#ifdef OPFORGE_EMULATE
  return static_cast<int64_t>(emu::kMaxSharedBytes) - kReservedShared;
#else
  int device = 0, bytes = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "cudaDevAttrMaxSharedMemoryPerBlockOptin");
  return bytes - kReservedShared;
#endif
}

/// Whether every row begins on a 16-byte boundary and is a whole number of 16-byte vectors.
template <typename T>
inline bool rows_vectorize(const Rows<T>& x) {
  return can_vectorize(x.data, x.cols) && x.stride % kVecSize<T> == 0;
}

template <int N, typename T, class Op>
inline void launch_rows_by(const Op& op, const Rows<const T>& x, cudaStream_t stream) {
  // a division in the kernel would be a call
  const float per_column = 1.0f / static_cast<float>(x.cols);
  if (x.cols <= kWarpRowColumns) {
    constexpr int kVecs = kWarpRowColumns / kWarpSize / N;
    OPFORGE_LAUNCH((register_rows<T, N, kVecs, WarpGroup, Op>), ceil_div(x.rows, kWarpsPerBlock),
                   WarpGroup::kMaxThreads, 0, stream, op, x,
                   per_column);
  } else if (x.cols <= kBlockRowColumns) {
    constexpr int kVecs = kBlockRowColumns / 1024 / N;
    const int64_t threads = ceil_div(ceil_div(x.cols, kVecs * N), kWarpSize) * kWarpSize;
    OPFORGE_LAUNCH((register_rows<T, N, kVecs, BlockGroup, Op>), x.rows,
                   static_cast<unsigned>(threads), 0, stream, op, x,
                   per_column);
  } else if (x.cols * static_cast<int64_t>(sizeof(T)) <= max_dynamic_shared()) {
    OPFORGE_LAUNCH((memory_rows<T, N, true, Op>), x.rows, 1024, x.cols * sizeof(T), stream, op, x,
                   per_column);
  } else {
    OPFORGE_LAUNCH((memory_rows<T, N, false, Op>), x.rows, 1024, 0, stream, op, x,
                   per_column);
  }
}

/// Runs `op` on every row of x. `vectors` says whether everything that op touches besides x
/// allows 16-byte accesses too.
template <typename T, class Op>
inline void launch_rows(const Op& op, const Rows<const T>& x, bool vectors, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return;
  OPFORGE_CHECK(x.rows <= INT32_MAX, ValueError, "a grid holds 2^31 - 1 rows at most (got ",
                x.rows, ")");
  if (vectors && rows_vectorize(x)) {
    launch_rows_by<kVecSize<T>>(op, x, stream);
  } else {
    launch_rows_by<1>(op, x, stream);
  }
}

}  // namespace opforge

#endif  // OPFORGE_DEVICE_ROWS_H_
