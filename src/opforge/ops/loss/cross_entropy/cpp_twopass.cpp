// The maximum first, then the sum of exp, with a row at a time in the cache.
//
// moves     rows * classes * itemsize bytes while a row fits the cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/softmax_host.h"
#include "opforge/loss/targets.h"

namespace {

template <typename T>
void losses(opforge::Rows<const T> x, const int64_t* target, T* loss, int64_t ignore_index, float smoothing) {
  opforge::for_each_row(x.rows, x.cols, [&](int64_t r) {
    const int64_t right = target[r];
    float value = 0.0f;
    if (right != ignore_index) {
      const T* scores = x.data + r * x.stride;
      const opforge::TopAndSum found = opforge::top_and_sum(scores, x.cols);
      const float log_sum = std::log(found.sum);
      // an index that no class has: there is no answer
      float score = NAN;
      if (right >= 0 && right < x.cols) score = opforge::load_as_float(scores[right]);
      value = log_sum - (score - found.top);
      if (smoothing != 0.0f) {
        const float all = opforge::sum_map(x.cols, [](float v) { return v; }, scores);
        value = (1.0f - smoothing) * value + smoothing * (log_sum + (found.top - all / static_cast<float>(x.cols)));
      }
    }
    loss[r] = opforge::store_from_float<T>(value);
  });
}

void cross_entropy(opforge::TensorView x, opforge::TensorView target, opforge::TensorView loss, int64_t ignore_index, double label_smoothing) {
  opforge::check_rows({"x", x});
  opforge::check_targets({"target", target}, {"x", x});
  opforge::check_per_row({{"loss", loss}}, {"x", x});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         losses<T>(opforge::as_rows<const T>(x), opforge::data<const int64_t>(target),
                                   opforge::data<T>(loss), ignore_index, static_cast<float>(label_smoothing)));
}

}  // namespace

OPFORGE_EXPORT(run, cross_entropy)
