// opforge/rows/wide_pieces.h - what kernels for wide rows share (opforge/rows/wide.h, opforge/rows/slices.h).
#ifndef OPFORGE_WIDE_PIECES_H_
#define OPFORGE_WIDE_PIECES_H_

#include <map>
#include <mutex>
#include <utility>

#include "opforge/arch/packed.h"
#include "opforge/rows/view.h"
#include "opforge/arch/shared_barriers.h"

namespace opforge {

constexpr int kWideMaxStages = 64;
constexpr int kWideMaxCluster = 16;
constexpr int64_t kWideMaxColumns = 262144;

/// A place in something that goes round, and the parity of the rounds.
struct WideTurn {
  int place = 0, parity = 0;
  __device__ __forceinline__ void next(int places) {
    if (++place == places) place = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(int steps, int places) {
    place += steps;
    if (place >= places) place -= places, parity ^= 1;
  }
};

/// Whether there is anything to do. Raises ValueError for rows that are no whole 16-byte vectors or wider than kWideMaxColumns, RuntimeError before sm_90.
template <typename T>
inline bool check_wide_rows(const Rows<const T>& x) {
  if (x.rows == 0 || x.cols == 0) return false;
#ifndef OPFORGE_EMULATE
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDevAttrComputeCapabilityMajor");
  OPFORGE_CHECK(major >= 9, RuntimeError, "clusters and copies in bulk need compute capability 9.0 (this device has ", major, ".x); use another implementation");
#endif
  OPFORGE_CHECK(x.cols % kVecSize<T> == 0, ValueError, "rows of ", x.cols, " columns are not whole 16-byte vectors; use another implementation");
  OPFORGE_CHECK(x.cols <= kWideMaxColumns, ValueError, "a row of ", x.cols, " columns are more than ", kWideMaxColumns, "; use another implementation");
  return true;
}

/// A whole vector; where it does not lie on a 16-byte boundary, element by element.
template <typename T, int N>
__device__ __forceinline__ Packed<T, N> load_vector(const T* p, bool on_grid) {
  if (on_grid) return Packed<T, N>::load(p);
  float values[N];
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = load_as_float(p[j]);
  return Packed<T, N>::pack(values);
}
template <typename T, int N>
__device__ __forceinline__ void store_vector(T* p, const float (&values)[N], bool on_grid) {
  if (on_grid) {
    Packed<T, N>::pack(values).store_once(p);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] = store_from_float<T>(values[j]);
  }
}

constexpr int kWideCounters = 16384;
/// What clusters that deal count the rows by: 0 when no kernel runs.
static __device__ int wide_counters[kWideCounters];

/// A counter that no launch running at the same time has: one for each stream, one for each launch that a graph holds, until there are
/// no more of them (nullptr). A graph must not run beside itself.
inline int* wide_counter(cudaStream_t stream) {
#ifdef OPFORGE_EMULATE
  (void)stream;
  return wide_counters;
#else
  static std::mutex mutex;
  static std::map<std::pair<int, unsigned long long>, int> of_stream;
  static std::map<int, std::pair<int*, int>> of_device;  // where they are, how many are taken
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  unsigned long long id = 0;
  const bool captured = status != cudaStreamCaptureStatusNone;
  if (!captured) check_cuda(cudaStreamGetId(stream, &id), "cudaStreamGetId");
  const std::lock_guard<std::mutex> lock(mutex);
  auto& [counters, taken] = of_device[device];
  if (counters == nullptr) {
    void* found = nullptr;
    check_cuda(cudaGetSymbolAddress(&found, wide_counters), "cudaGetSymbolAddress");
    counters = static_cast<int*>(found);
  }
  if (!captured) {
    const auto known = of_stream.find({device, id});
    if (known != of_stream.end()) return counters + known->second;
  }
  if (taken == kWideCounters) return nullptr;
  if (!captured) of_stream[{device, id}] = taken;
  return counters + taken++;
#endif
}

}  // namespace opforge

#endif  // OPFORGE_WIDE_PIECES_H_
