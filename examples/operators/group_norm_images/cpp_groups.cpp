// Group by group: its elements lie one after another in NCHW.
//
// moves     x three times, of which two from the cache where a group fits; y once
#include <cmath>

#include "opforge/host.h"

namespace {

template <typename T>
void normalise(const T* x, const T* weight, const T* bias, T* y, int64_t batch, int64_t channels, int64_t pixels,
               int64_t groups, double eps) {
  const int64_t each = channels / groups, length = each * pixels;
  const int64_t grain = (1 << 14) / (length + 1) + 1;  // groups that are worth a thread
  opforge::parallel_for(0, batch * groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const T* from = x + g * length;
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < length; ++i) sum += opforge::load_as_float(from[i]);
      const double mean = sum / length;
      for (int64_t i = 0; i < length; ++i) {
        const double centred = opforge::load_as_float(from[i]) - mean;
        squares += centred * centred;
      }
      const double scale = 1 / std::sqrt(squares / length + eps);
      for (int64_t c = 0; c < each; ++c) {
        const int64_t channel = g % groups * each + c;
        const double w = opforge::load_as_float(weight[channel]), b = opforge::load_as_float(bias[channel]);
        for (int64_t p = c * pixels; p < (c + 1) * pixels; ++p) {
          const double v = (opforge::load_as_float(from[p]) - mean) * scale * w + b;
          y[g * length + p] = opforge::store_from_float<T>(static_cast<float>(v));
        }
      }
    }
  });
}

void run(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y,
         int64_t groups, double eps) {
  OPFORGE_CHECK_NDIM(x, 4);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_SHAPE(weight, bias);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, weight);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(weight);
  OPFORGE_CHECK_CONTIGUOUS(bias);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK(groups > 0 && x.size(1) % groups == 0, ValueError, "groups must divide the channels");
  OPFORGE_DISPATCH_DTYPE(x, T,
                         normalise<T>(opforge::data<const T>(x), opforge::data<const T>(weight),
                                      opforge::data<const T>(bias), opforge::data<T>(y), x.size(0), x.size(1),
                                      x.size(2) * x.size(3), groups, eps));
}

}  // namespace

OPFORGE_EXPORT(run, run)
