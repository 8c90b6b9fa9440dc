// The maximum first, then the sum of exp, then the gradient, with a row at a time in the cache.
//
// moves     2 * rows * classes * itemsize bytes while a row fits the cache; exp is computed twice
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <algorithm>

#include "opforge/rows/softmax_host.h"
#include "opforge/loss/targets.h"

namespace {

template <typename T>
void gradients(opforge::Rows<const T> x, const int64_t* target, const T* dloss, opforge::Rows<T> dx, int64_t ignore_index, float smoothing) {
  const int64_t cols = x.cols;
  opforge::for_each_row(x.rows, cols, [&](int64_t r) {
    const int64_t right = target[r];
    const T* scores = x.data + r * x.stride;
    T* out = dx.data + r * dx.stride;
    if (right == ignore_index) {
      std::fill_n(out, cols, T());
      return;
    }
    const opforge::TopAndSum found = opforge::top_and_sum(scores, cols);
    const float top = found.top, scale = 1.0f / found.sum, spread = smoothing / static_cast<float>(cols);
    const float given = opforge::load_as_float(dloss[r]);
    const bool valid = right >= 0 && right < cols;
    // no class has such an index: there is no answer
    const float weight = valid ? given : NAN;
    const auto gradient = [top, scale, spread, weight](float v) { return (opforge::exp_nonpositive(v - top) * scale - spread) * weight; };
    opforge::map_row(cols, out, gradient, scores);
    if (valid) out[right] = opforge::store_from_float<T>(gradient(opforge::load_as_float(scores[right])) - (1.0f - smoothing) * given);
  });
}

void cross_entropy_backward(opforge::TensorView x, opforge::TensorView target, opforge::TensorView dloss, opforge::TensorView dx, int64_t ignore_index,
                            double label_smoothing) {
  opforge::check_same_rows({{"x", x}, {"dx", dx}});
  opforge::check_targets({"target", target}, {"x", x});
  opforge::check_per_row({{"dloss", dloss}}, {"x", x});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         gradients<T>(opforge::as_rows<const T>(x), opforge::data<const int64_t>(target), opforge::data<const T>(dloss),
                                      opforge::as_rows<T>(dx), ignore_index, static_cast<float>(label_smoothing)));
}

}  // namespace

OPFORGE_EXPORT(run, cross_entropy_backward)
