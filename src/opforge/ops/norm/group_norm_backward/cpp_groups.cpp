// Group by group: statistics, the two sums of each channel, then dx; a channel's sums over images are added up at the end, in one order.
//
// moves     3 * elements * itemsize bytes while a group of x and dy fits the cache
// limits    groups are spread over the threads: a single group runs on one
#include <algorithm>
#include <vector>

#include "opforge/norm/groups.h"
#include "opforge/rows/host.h"

namespace {

/// Of the elements of one channel of an image: the sum of dy, and that of dy * h.
struct ChannelSums {
  float level, slope;
};

/// Both sums in one pass. What is not there counts as 0: dy there is 0.
template <typename T>
ChannelSums channel_sums(const T* x, const T* dy, int64_t positions, float mean, float scale) {
  constexpr int64_t kStep = 2 * opforge::detail::kLanes, kBlock = 4096;
  ChannelSums sums{0.0f, 0.0f};
  // a block's sums are added up for themselves, so that a rounding error grows with few terms
  for (int64_t block = 0; block < positions; block += kBlock) {
    const int64_t end = std::min(positions, block + kBlock);
    opforge::detail::Wide level = {}, slope = {};
    const auto add = [&](const opforge::detail::Wide& v, const opforge::detail::Wide& d) {
      opforge::detail::add_to(level, d);
      opforge::detail::add_to(slope, {d.first * ((v.first - mean) * scale), d.second * ((v.second - mean) * scale)});
    };
    int64_t i = block;
    for (; i + kStep <= end; i += kStep) add(opforge::detail::widen(x + i), opforge::detail::widen(dy + i));
    if (i < end) add(opforge::detail::widen_part(x + i, end - i), opforge::detail::widen_part(dy + i, end - i));
    const auto both = [](const opforge::detail::Floats& a, const opforge::detail::Floats& b) { return a + b; };
    sums.level += opforge::detail::across(level.first + level.second, both);
    sums.slope += opforge::detail::across(slope.first + slope.second, both);
  }
  return sums;
}

template <typename T>
void gradients(const T* x, const T* weight, const T* dy, T* dx, T* dweight, T* dbias, const opforge::GroupShape& shape,
               float eps) {
  const int64_t length = shape.length, each = shape.each, positions = shape.positions;
  std::vector<ChannelSums> sums(shape.batch * shape.channels);
  opforge::for_each_row(length == 0 ? 0 : shape.batch * shape.groups, length, [&](int64_t group) {
    const T *from = x + group * length, *arrived = dy + group * length;
    T* to = dx + group * length;
    const opforge::MeanAndVariance of = opforge::mean_and_variance(from, length);
    const float mean = of.mean, scale = 1.0f / std::sqrt(of.variance + eps);
    const T* weights = weight + group % shape.groups * each;
    ChannelSums* mine = sums.data() + group * each;
    float level = 0.0f, slope = 0.0f;
    for (int64_t c = 0; c < each; ++c) {
      const T *values = from + c * positions, *given = arrived + c * positions;
      if (positions == 1) {
        const float d = opforge::load_as_float(given[0]);
        mine[c] = {d, d * ((opforge::load_as_float(values[0]) - mean) * scale)};
      } else {
        mine[c] = channel_sums(values, given, positions, mean, scale);
      }
      const float w = opforge::load_as_float(weights[c]);
      level += w * mine[c].level;
      slope += w * mine[c].slope;
    }
    level /= length;
    slope /= length;
    if (positions == 1) {
      opforge::map_row(
          each, to, [=](float v, float d, float w) { return (d * w - level - (v - mean) * scale * slope) * scale; },
          from, arrived, weights);
      return;
    }
    for (int64_t c = 0; c < each; ++c) {
      const float w = opforge::load_as_float(weights[c]);
      opforge::map_row(
          positions, to + c * positions,
          [=](float v, float d) { return (d * w - level - (v - mean) * scale * slope) * scale; }, from + c * positions,
          arrived + c * positions);
    }
  });
  for (int64_t c = 0; c < shape.channels; ++c) {
    float level = 0.0f, slope = 0.0f;
    for (int64_t image = 0; image < (length == 0 ? 0 : shape.batch); ++image) {
      level += sums[image * shape.channels + c].level;
      slope += sums[image * shape.channels + c].slope;
    }
    dweight[c] = opforge::store_from_float<T>(slope);
    dbias[c] = opforge::store_from_float<T>(level);
  }
}

void group_norm_backward(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView dy,
                         opforge::TensorView dx, opforge::TensorView dweight, opforge::TensorView dbias, int64_t groups,
                         double eps) {
  const opforge::GroupShape shape = opforge::check_groups(
      {{"x", x}, {"dy", dy}, {"dx", dx}}, {{"weight", weight}, {"dweight", dweight}, {"dbias", dbias}}, groups);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         gradients(opforge::data<const T>(x), opforge::data<const T>(weight),
                                   opforge::data<const T>(dy), opforge::data<T>(dx), opforge::data<T>(dweight),
                                   opforge::data<T>(dbias), shape, static_cast<float>(eps)));
}

}  // namespace

OPFORGE_EXPORT(run, group_norm_backward)
