// The maximum first, then the sum of exp, then the gradient, with a row at a time in the cache.
//
// moves     2 * rows * classes * itemsize bytes while a row fits the cache; exp is computed twice
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/host_pieces.h"
#include "opforge/targets.h"

namespace {

template <typename T>
void gradients(opforge::Rows<const T> x, const int64_t* target, const T* dloss, opforge::Rows<T> dx, int64_t ignore_index, float smoothing) {
  const int64_t cols = x.cols;
  opforge::for_each_row(x.rows, opforge::Pieces<T>::kSize, [&](int64_t r, float* buffer) {
    const int64_t right = target[r];
    T* out = dx.data + r * dx.stride;
    if (right == ignore_index) {
      std::fill_n(out, cols, T());
      return;
    }
    opforge::Pieces<T> row(x.data + r * x.stride, cols);
    const opforge::TopAndSum found = opforge::top_and_sum(row);
    const float top = found.top, scale = 1.0f / found.sum, spread = smoothing / static_cast<float>(cols);
    float weight;
    opforge::convert_to_float(dloss + r, &weight, 1);
    const bool valid = right >= 0 && right < cols;
    const float right_weight = (1.0f - smoothing) * weight;
    // no class has such an index: there is no answer
    if (!valid) weight = NAN;
    for (int64_t first = 0; first < cols; first += opforge::Pieces<T>::kSize) {
      const int64_t n = std::min<int64_t>(cols - first, opforge::Pieces<T>::kSize);
      float values[opforge::Pieces<T>::kSize];
      const float* piece = opforge::row_as_float(x.data + r * x.stride + first, values, n);
      float* goal = opforge::row_target(out + first, buffer);
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) goal[c] = (opforge::exp(piece[c] - top) * scale - spread) * weight;
      if (valid && right >= first && right < first + n) goal[right - first] -= right_weight;
      opforge::finish_row(goal, out + first, n);
    }
  });
}

void cross_entropy_backward(opforge::TensorView x, opforge::TensorView target, opforge::TensorView dloss, opforge::TensorView dx, int64_t ignore_index,
                            double label_smoothing) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK_ROWS(dx);
  OPFORGE_CHECK_SAME_SHAPE(x, dx);
  OPFORGE_CHECK_SAME_DTYPE(x, dx);
  OPFORGE_CHECK_TARGETS(target, x);
  OPFORGE_CHECK_PER_ROW(dloss, x);
  OPFORGE_CHECK_SAME_DTYPE(x, dloss);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         gradients<T>(opforge::as_rows<const T>(x), opforge::data<const int64_t>(target), opforge::data<const T>(dloss),
                                      opforge::as_rows<T>(dx), ignore_index, static_cast<float>(label_smoothing)));
}

}  // namespace

OPFORGE_EXPORT(run, cross_entropy_backward)
