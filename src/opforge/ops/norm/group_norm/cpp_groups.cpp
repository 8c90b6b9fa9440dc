// Group by group: the mean, then the variance of the deviations from it, then the result channel by channel.
//
// moves     2 * elements * itemsize bytes while a group fits the cache
// limits    groups are spread over the threads: a single group runs on one
#include "opforge/norm/groups.h"
#include "opforge/rows/host.h"

namespace {

template <typename T>
void normalise(const T* x, const T* weight, const T* bias, T* y, const opforge::GroupShape& shape, float eps) {
  const int64_t length = shape.length, each = shape.each, positions = shape.positions;
  opforge::for_each_row(shape.batch * shape.groups, length, [&](int64_t group) {
    const T* from = x + group * length;
    T* to = y + group * length;
    const opforge::MeanAndVariance of = opforge::mean_and_variance(from, length);
    const float mean = of.mean, scale = 1.0f / std::sqrt(of.variance + eps);
    const int64_t first = group % shape.groups * each;
    if (positions == 1) {
      opforge::map_row(
          each, to, [mean, scale](float v, float w, float b) { return (v - mean) * scale * w + b; }, from,
          weight + first, bias + first);
      return;
    }
    for (int64_t c = 0; c < each; ++c) {
      const float w = opforge::load_as_float(weight[first + c]), b = opforge::load_as_float(bias[first + c]);
      opforge::map_row(
          positions, to + c * positions, [=](float v) { return (v - mean) * scale * w + b; }, from + c * positions);
    }
  });
}

void group_norm(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView bias, opforge::TensorView y,
                int64_t groups, double eps) {
  const opforge::GroupShape shape =
      opforge::check_groups({{"x", x}, {"y", y}}, {{"weight", weight}, {"bias", bias}}, groups);
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T,
                         normalise(opforge::data<const T>(x), opforge::data<const T>(weight),
                                   opforge::data<const T>(bias), opforge::data<T>(y), shape, static_cast<float>(eps)));
}

}  // namespace

OPFORGE_EXPORT(run, group_norm)
