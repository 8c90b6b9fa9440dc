// opforge/rows/host.h - CPU kernels that work row by row: statistics of a row, and rows spread over threads.
#ifndef OPFORGE_HOST_ROWS_H_
#define OPFORGE_HOST_ROWS_H_

#include <cstddef>
#include <memory>
#include <type_traits>

#include "opforge/arch/host_lanes.h"
#include "opforge/rows/view.h"

namespace opforge {

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

/// The mean of a row, and the mean of the squares of the deviations from it.
struct MeanAndVariance {
  float mean, variance;
};
template <typename T>
inline MeanAndVariance mean_and_variance(const T* row, int64_t cols) {
  const float mean = sum_map(cols, [](float v) { return v; }, row) / cols;
  const float squares = sum_map(cols, [mean](float v) { return (v - mean) * (v - mean); }, row);
  return {mean, squares / cols};
}

/// Rows that a thread is worth starting for: about 16384 elements.
inline int64_t rows_for_a_thread(int64_t cols) { return 1 + 16384 / (cols + 1); }

/// Calls body(r) for every row of `cols` elements, rows spread over the threads.
template <class Body>
inline void for_each_row(int64_t rows, int64_t cols, const Body& body) {
  parallel_for(0, rows, rows_for_a_thread(cols), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) body(r);
  });
}

/// The same with body(r, buffer); `buffer` holds `cols` floats and belongs to the thread.
template <class Body>
inline void for_each_buffered_row(int64_t rows, int64_t cols, const Body& body) {
  parallel_for(0, rows, rows_for_a_thread(cols), [&](int64_t first, int64_t last) {
    const std::unique_ptr<float[]> buffer(new float[cols]);
    for (int64_t r = first; r < last; ++r) body(r, buffer.get());
  });
}

/// y = layernorm(x), read as it is stored: three times, from the cache after the first.
template <typename T>
inline void layernorm_rows(const Rows<const T>& x, const T* weight, const T* bias, const Rows<T>& y, float eps, std::nullptr_t) {
  for_each_row(x.rows, x.cols, [&](int64_t r) {
    const T* row = x.data + r * x.stride;
    const MeanAndVariance of = mean_and_variance(row, x.cols);
    const float mean = of.mean, scale = 1.0f / std::sqrt(of.variance + eps);
    map_row(x.cols, y.data + r * y.stride, [mean, scale](float v, float w, float b) { return (v - mean) * scale * w + b; }, row, weight, bias);
  });
}

/// y = after(layernorm(x)) with a row of floats at a time in cache: after(r, target) changes row r of the results.
template <typename T, class After>
inline void layernorm_rows(const Rows<const T>& x, const T* weight, const T* bias, const Rows<T>& y, float eps, const After& after) {
  const int64_t cols = x.cols;
  const FloatColumns<T> weights(weight, cols), biases(bias, cols);
  const float* w = weights.get();
  const float* b = biases.get();
  for_each_buffered_row(x.rows, cols, [&](int64_t r, float* buffer) {
    const float* row = row_as_float(x.data + r * x.stride, buffer, cols);
    const MeanAndVariance of = mean_and_variance(row, cols);
    const float mean = of.mean, scale = 1.0f / std::sqrt(of.variance + eps);
    T* out = y.data + r * y.stride;
    float* target = row_target(out, buffer);
    map_row(cols, target, [mean, scale](float v, float g, float h) { return (v - mean) * scale * g + h; }, row, w, b);
    after(r, target);
    finish_row(target, out, cols);
  });
}

/// Either for tensors; `after` is nullptr where the results stay as they are. Raises ValueError or TypeError where they do not fit together.
template <class After>
inline void layernorm_tensors(const TensorView& x, const TensorView& weight, const TensorView& bias, const TensorView& y, double eps, const After& after) {
  check_same_rows({{"x", x}, {"y", y}});
  check_columns({{"weight", weight}, {"bias", bias}}, {"x", x});
  OPFORGE_DISPATCH_DTYPE(x, T, layernorm_rows(as_rows<const T>(x), data<const T>(weight), data<const T>(bias), as_rows<T>(y), static_cast<float>(eps), after));
}

}  // namespace opforge

#endif  // OPFORGE_HOST_ROWS_H_
