// opforge/host_rows.h - CPU kernels that work row by row: sums, and rows spread over threads.
//
// Vectors are the compiler's own (GCC and Clang), 16 floats each; on a machine with narrower
// registers the compiler splits them.
#ifndef OPFORGE_HOST_ROWS_H_
#define OPFORGE_HOST_ROWS_H_

#include <memory>
#include <type_traits>

#include "opforge/host.h"
#include "opforge/rows.h"

namespace opforge {

typedef float F32x16 __attribute__((vector_size(64)));

inline F32x16 load16(const float* p) {
  F32x16 v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline void store16(float* p, const F32x16& v) { __builtin_memcpy(p, &v, sizeof(v)); }

/// Sum of f(x[i]) over n elements; f takes and returns a float as well as an F32x16.
/// 64 sums run side by side, which hides the latency of an addition. They are added up every
/// 4096 elements, so that a rounding error grows with 64 + n / 4096 terms.
template <class F>
inline float sum_over(const float* x, int64_t n, const F& f) {
  float total = 0.0f;
  int64_t i = 0;
  while (i + 16 <= n) {
    const int64_t end = n - i < 4096 ? n : i + 4096;
    F32x16 a = {}, b = {}, c = {}, d = {};
    for (; i + 64 <= end; i += 64) {
      a += f(load16(x + i));
      b += f(load16(x + i + 16));
      c += f(load16(x + i + 32));
      d += f(load16(x + i + 48));
    }
    for (; i + 16 <= end; i += 16) a += f(load16(x + i));
    a = (a + b) + (c + d);
    float sum = 0.0f;
    for (int j = 0; j < 16; ++j) sum += a[j];
    total += sum;
  }
  for (; i < n; ++i) total += f(x[i]);
  return total;
}

/// The largest of n elements, -infinity for none; NaN is passed over.
inline float max_over(const float* x, int64_t n) {
  const auto larger = [](const F32x16& a, const F32x16& b) { return b > a ? b : a; };
  F32x16 a = F32x16{} - INFINITY, b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    a = larger(a, load16(x + i));
    b = larger(b, load16(x + i + 16));
    c = larger(c, load16(x + i + 32));
    d = larger(d, load16(x + i + 48));
  }
  for (; i + 16 <= n; i += 16) a = larger(a, load16(x + i));
  a = larger(larger(a, b), larger(c, d));
  float top = -INFINITY;
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  for (int j = 0; j < 16; ++j) top = a[j] > top ? a[j] : top;
  return top;
}

/// A row's elements as float: the row itself when it is float, else converted into `buffer`.
template <typename T>
inline const float* row_as_float(const T* row, float* buffer, int64_t n) {
  if constexpr (std::is_same<T, float>::value) {
    return row;
  } else {
    convert_to_float(row, buffer, n);
    return buffer;
  }
}

/// Where to put a row of float results: the output itself when it is float, else `buffer`,
/// from which finish_row() converts.
template <typename T>
inline float* row_target(T* out, float* buffer) {
  if constexpr (std::is_same<T, float>::value) {
    return out;
  } else {
    return buffer;
  }
}
template <typename T>
inline void finish_row(const float* buffer, T* out, int64_t n) {
  if constexpr (!std::is_same<T, float>::value) convert_from_float(buffer, out, n);
}

/// The columns of a vector as float, converted once for all rows.
template <typename T>
class FloatColumns {
 public:
  FloatColumns(const T* source, int64_t n)
      : buffer_(std::is_same<T, float>::value ? nullptr : new float[n]),
        values_(row_as_float(source, buffer_.get(), n)) {}
  const float* get() const { return values_; }

 private:
  std::unique_ptr<float[]> buffer_;
  const float* values_;
};

/// Calls body(r, buffer) for every row, rows spread over the threads; `buffer` holds `cols`
/// floats and belongs to the thread.
template <class Body>
inline void for_each_row(int64_t rows, int64_t cols, const Body& body) {
  // a thread is worth starting for about 16384 elements
  parallel_for(0, rows, 1 + 16384 / (cols + 1), [&](int64_t first, int64_t last) {
    const std::unique_ptr<float[]> buffer(new float[cols]);
    for (int64_t r = first; r < last; ++r) body(r, buffer.get());
  });
}

}  // namespace opforge

#endif  // OPFORGE_HOST_ROWS_H_
