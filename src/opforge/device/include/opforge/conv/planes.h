// opforge/conv/planes.h - images on a CPU as planes of floats in which every tap of a kernel is one offset.
//
// A plane has its padding in it. Where the kernel moves by strides of 2 there are four planes for a channel, one for each remainder of
// row and column, so that neighbouring outputs always read neighbouring elements: a convolution with strides is one without, on such
// planes. Output (p, q) is element p * line + q of a plane's rows; the few elements behind the last q are computed and thrown away.
#ifndef OPFORGE_CONV_PLANES_H_
#define OPFORGE_CONV_PLANES_H_

#include <vector>

#include "opforge/conv/shape.h"
#include "opforge/gemm/host_tile.h"

namespace opforge {
namespace conv {

// Rows or columns of planes: which remainders are read, and by how much each tap is shifted.
struct Phases {
  std::vector<int64_t> phases, shift, place;  // for each tap: its shift, and the place of its remainder among `phases`
  int64_t size;                               // of a plane

  Phases(int64_t kernel, int64_t out, const Steps& steps) {
    int64_t most = 0;
    for (int64_t tap = 0; tap < kernel; ++tap) {
      const int64_t phase = tap * steps.dilation % steps.stride;
      int64_t at = 0;
      while (at < static_cast<int64_t>(phases.size()) && phases[at] != phase) ++at;
      if (at == static_cast<int64_t>(phases.size())) phases.push_back(phase);
      place.push_back(at);
      shift.push_back(tap * steps.dilation / steps.stride);
      most = std::max(most, shift.back());
    }
    size = out + most;
  }
  int64_t count() const { return static_cast<int64_t>(phases.size()); }
};

// How the planes of one image lie: [groups * channels][phases of rows][phases of columns][rows][columns].
struct Planes {
  Phases rows, cols;
  int64_t plane, channel, image;  // elements of each
  const float* data = nullptr;
  bool in_place = false;

  explicit Planes(const Shape& s) : rows(s.kernel_h, s.out_h, s.rows), cols(s.kernel_w, s.out_w, s.cols) {
    plane = rows.size * cols.size;
    channel = plane * rows.count() * cols.count();
    image = channel * s.groups * s.channels;
  }
  int64_t line() const { return cols.size; }
  int64_t pixels(const Shape& s) const { return (s.out_h - 1) * line() + s.out_w; }

  // Where each term of a sum reads, from the first channel of a group on; terms in the order of a filter's weights, channels innermost or taps.
  std::vector<int64_t> offsets(const Shape& s, bool channels_inside) const {
    std::vector<int64_t> found;
    found.reserve(s.terms());
    for (int64_t first = 0; first < (channels_inside ? s.taps() : s.channels); ++first)
      for (int64_t second = 0; second < (channels_inside ? s.channels : s.taps()); ++second) {
        const int64_t c = channels_inside ? second : first, tap = channels_inside ? first : second;
        const int64_t r = tap / s.kernel_w, q = tap % s.kernel_w;
        found.push_back(c * channel + (rows.place[r] * cols.count() + cols.place[q]) * plane + rows.shift[r] * line() +
                        cols.shift[q]);
      }
    return found;
  }

  // Whether x itself is such planes: nothing is added around it, and it is not taken apart.
  template <typename T>
  bool lies_so(const TensorView& x, const Shape& s) const {
    return std::is_same<T, float>::value && s.rows.stride == 1 && s.cols.stride == 1 &&
           s.rows.before + s.rows.behind + s.cols.before + s.cols.behind == 0 && (x.stride(3) == 1 || s.width == 1) &&
           (x.stride(2) == s.width || s.height == 1) && x.stride(1) >= s.height * s.width;
  }
  void take(const TensorView& x) {
    data = opforge::data<const float>(x);
    channel = x.stride(1), image = x.stride(0), in_place = true;
  }
};

// `count` elements of a row, so many apart, as floats.
template <typename T>
inline void gather_row(const T* source, int64_t step, int64_t count, float* target) {
  if (step == 1) return convert_to_float(source, target, count);
  for (int64_t j = 0; j < count; ++j) target[j] = load_as_float(source[j * step]);
}

// One row of one plane: image row `at` from column `first` on, in steps of the stride; what lies outside is 0. `read(column, count, target)`.
template <typename Read>
inline void fill_row(const Shape& s, const Planes& planes, int64_t at, int64_t phase, float* target, const Read& read) {
  const int64_t line = planes.line(), stride = s.cols.stride, first = phase - s.cols.before;
  int64_t begin = 0, end = 0;
  if (at >= 0 && at < s.height) {
    begin = first >= 0 ? 0 : std::min(line, (-first + stride - 1) / stride);
    end = first >= s.width ? begin : std::max(begin, std::min(line, (s.width - 1 - first) / stride + 1));
  }
  std::fill(target, target + begin, 0.0f);
  if (end > begin) read(first + begin * stride, end - begin, target + begin);
  std::fill(target + end, target + line, 0.0f);
}

// The planes of `count` images from number `first` on, channels in NCHW or whatever strides they have.
template <typename T>
void fill_planes(const TensorView& x, const Shape& s, const Planes& planes, int64_t first, int64_t count,
                 float* target) {
  const int64_t channels = s.groups * s.channels, stride = s.cols.stride, step = x.stride(3) * stride;
  if (x.stride(1) == 1 && channels >= detail::kLanes) {
    // NHWC: squares of pixels and channels are turned in registers
    constexpr int kWidth = 16;
    const int64_t lines = planes.rows.count() * planes.cols.count() * planes.rows.size;
    parallel_for(0, count * lines, 1 + 16384 / (planes.line() * channels), [&](int64_t begin, int64_t end) {
      gemm::Buffer turned(kWidth * channels);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / lines, row = task % planes.rows.size, phases = task % lines / planes.rows.size;
        const int64_t at = row * s.rows.stride + planes.rows.phases[phases / planes.cols.count()] - s.rows.before;
        float* line = target + image * planes.image + phases * planes.plane + row * planes.line();
        int64_t from = 0, many = 0;
        float* there = nullptr;
        // channel 0 says where the row lies; the others follow
        fill_row(s, planes, at, planes.cols.phases[phases % planes.cols.count()], line,
                 [&](int64_t column, int64_t n, float* place) { from = column, many = n, there = place; });
        for (int64_t c = 1; c < channels; ++c) {
          float* other = line + c * planes.channel;
          const int64_t before = many ? there - line : planes.line();
          std::fill(other, other + before, 0.0f);
          std::fill(other + before + many, other + planes.line(), 0.0f);
        }
        const T* source = data<const T>(x) + (first + image) * x.stride(0) + at * x.stride(2) + from * x.stride(3);
        for (int64_t j = 0; j < many; j += kWidth) {
          const int64_t now = std::min<int64_t>(kWidth, many - j);
          gemm::pack_panel<kWidth>(source + j * step, step, 1, now, channels, turned.get());
          for (int64_t c = 0; c < channels; ++c)
            __builtin_memcpy(there + j + c * planes.channel, turned.get() + c * kWidth, now * sizeof(float));
        }
      }
    });
    return;
  }
  parallel_for(0, count * channels, 1 + 16384 / planes.channel, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const T* source = data<const T>(x) + (first + task / channels) * x.stride(0) + task % channels * x.stride(1);
      float* line = target + task / channels * planes.image + task % channels * planes.channel;
      for (const int64_t up : planes.rows.phases)
        for (const int64_t left : planes.cols.phases)
          for (int64_t row = 0; row < planes.rows.size; ++row, line += planes.line()) {
            const int64_t at = row * s.rows.stride + up - s.rows.before;
            fill_row(s, planes, at, left, line, [&](int64_t column, int64_t n, float* place) {
              gather_row(source + at * x.stride(2) + column * x.stride(3), step, n, place);
            });
          }
    }
  });
}

}  // namespace conv
}  // namespace opforge

#endif  // OPFORGE_CONV_PLANES_H_
