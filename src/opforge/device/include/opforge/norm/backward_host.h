// opforge/norm/backward_host.h - gradients of layer and RMS normalisation on the CPU; the formulas are in opforge/norm/backward.h.
#ifndef OPFORGE_HOST_NORM_BACKWARD_H_
#define OPFORGE_HOST_NORM_BACKWARD_H_

#include <algorithm>
#include <vector>

#include "opforge/rows/host.h"

namespace opforge {

/// dx, dweight and (kCentred: layer normalisation) dbias. Rows go to at most 64 parts, each with sums of its own; how many does not
/// depend on the number of threads, so that neither do the results.
template <bool kCentred, typename T>
inline void norm_gradient(Rows<const T> x, const T* weight, Rows<const T> dy, Rows<T> dx, T* dweight, T* dbias, float eps) {
  const int64_t cols = x.cols, rows = x.rows;
  const FloatColumns<T> weights(weight, cols);
  const float* w = weights.get();
  // a part is worth its sums when it has about 16 rows
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(64, rows / 16));
  std::vector<float> sums(parts * 2 * cols, 0.0f);
  parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    const std::unique_ptr<float[]> buffer(new float[4 * cols]);
    float *of_x = buffer.get(), *of_dy = of_x + cols, *h = of_dy + cols, *g = h + cols;
    for (int64_t part = first; part < last; ++part) {
      float *weight_sums = sums.data() + part * 2 * cols, *bias_sums = weight_sums + cols;
      for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; ++r) {
        const float* row = row_as_float(x.data + r * x.stride, of_x, cols);
        const float* gradient = row_as_float(dy.data + r * dy.stride, of_dy, cols);
        const float mean = kCentred ? sum_map(cols, [](float v) { return v; }, row) / cols : 0.0f;
        const float squares = sum_map(cols, [mean](float v) { return (v - mean) * (v - mean); }, row);
        const float scale = 1.0f / std::sqrt(squares / cols + eps);
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) {
          h[c] = (row[c] - mean) * scale;
          g[c] = gradient[c] * w[c];
          weight_sums[c] += gradient[c] * h[c];
          if (kCentred) bias_sums[c] += gradient[c];
        }
        const float level = kCentred ? sum_map(cols, [](float v) { return v; }, g) / cols : 0.0f;
        const float slope = sum_map(cols, [](float a, float b) { return a * b; }, g, h) / cols;
        T* out = dx.data + r * dx.stride;
        float* target = row_target(out, of_x);
#pragma omp simd
        for (int64_t c = 0; c < cols; ++c) target[c] = (g[c] - level - h[c] * slope) * scale;
        finish_row(target, out, cols);
      }
    }
  });
  for (int64_t c = 0; c < cols; ++c) {
    float of_weight = 0.0f, of_bias = 0.0f;
    for (int64_t part = 0; part < parts; ++part) {
      of_weight += sums[part * 2 * cols + c];
      of_bias += sums[part * 2 * cols + cols + c];
    }
    dweight[c] = store_from_float<T>(of_weight);
    if (kCentred) dbias[c] = store_from_float<T>(of_bias);
  }
}

}  // namespace opforge

#endif  // OPFORGE_HOST_NORM_BACKWARD_H_
