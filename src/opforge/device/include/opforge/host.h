// opforge/host.h - what a CPU kernel (.cpp) needs: binding, dtypes, threads.
#ifndef OPFORGE_HOST_H_
#define OPFORGE_HOST_H_

#include <cmath>
#include <cstdint>

#include "opforge/ffi.h"
#include "opforge/numeric/half.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace opforge {

using half_t = Float16;
using bfloat16_t = BFloat16;

/// Converts one stored element to float.
template <typename T>
inline float load_as_float(const T& value) {
  return static_cast<float>(value);
}

/// Converts a float to the stored type, rounding to nearest even.
template <typename T>
inline T store_from_float(float value) {
  return T(value);
}

/// Typed data pointer of a tensor (the dtype has been dispatched on or checked before).
template <typename T>
inline T* data(const TensorView& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// Converts n stored elements to float.
template <typename T>
inline void convert_to_float(const T* __restrict__ source, float* __restrict__ target, int64_t n) {
  for (int64_t i = 0; i < n; ++i) target[i] = load_as_float(source[i]);
}

/// Converts n floats to the stored type.
template <typename T>
inline void convert_from_float(const float* __restrict__ source, T* __restrict__ target,
                               int64_t n) {
  for (int64_t i = 0; i < n; ++i) target[i] = store_from_float<T>(source[i]);
}

#ifdef __F16C__
// GCC does not vectorise float16 conversions by itself; eight at a time here.
typedef short F16x8 __attribute__((vector_size(16)));
typedef float F32x8 __attribute__((vector_size(32)));

inline void convert_to_float(const Float16* __restrict__ source, float* __restrict__ target,
                             int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    F16x8 half;
    __builtin_memcpy(&half, source + i, sizeof(half));
    const F32x8 full = __builtin_ia32_vcvtph2ps256(half);
    __builtin_memcpy(target + i, &full, sizeof(full));
  }
  for (; i < n; ++i) target[i] = load_as_float(source[i]);
}

inline void convert_from_float(const float* __restrict__ source, Float16* __restrict__ target,
                               int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    F32x8 full;
    __builtin_memcpy(&full, source + i, sizeof(full));
    const F16x8 half = __builtin_ia32_vcvtps2ph256(full, 0);  // 0: to nearest even
    __builtin_memcpy(target + i, &half, sizeof(half));
  }
  for (; i < n; ++i) target[i] = store_from_float<Float16>(source[i]);
}
#endif

/// Calls body(first, last) on sub-ranges of [begin, end), in parallel where there is
/// more than `grain` to do.  An exception in a sub-range is raised again here.
template <typename Body>
inline void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  const int64_t count = end - begin;
  if (count <= 0) return;
#ifdef _OPENMP
  if (grain < 1) grain = 1;
  const int64_t useful = (count + grain - 1) / grain;
  int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (useful < threads) threads = static_cast<int>(useful);
  if (threads > 1) {
    std::exception_ptr error;
#pragma omp parallel num_threads(threads)
    {
      const int64_t id = omp_get_thread_num(), n = omp_get_num_threads();
      const int64_t first = begin + count * id / n, last = begin + count * (id + 1) / n;
      try {
        if (first < last) body(first, last);
      } catch (...) {
#pragma omp critical(opforge_parallel_for)
        error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    return;
  }
#endif
  body(begin, end);
}

}  // namespace opforge

#endif  // OPFORGE_HOST_H_
