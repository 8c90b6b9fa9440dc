// opforge/conv/gradients_host.h - gradients of convolutions on a CPU: packed products whose operands are read where they lie.
//
// Both are products of matrices (opforge/gemm/host.h) of which one operand is never written down: what each pixel of the image is
// given by outputs, and what each weight was multiplied with. A panel of it is gathered when it is packed.
#ifndef OPFORGE_CONV_GRADIENTS_HOST_H_
#define OPFORGE_CONV_GRADIENTS_HOST_H_

#include <vector>

#include "opforge/conv/shape.h"
#include "opforge/gemm/host.h"

namespace opforge {
namespace conv {

// Panels of an operand whose element `term` of vector `number` is at(number, term): nullptr where it is 0.
template <typename At>
struct Gathered {
  At at;

  template <int width>
  void pack(int64_t first, int64_t start, int64_t count, int64_t terms, float* target) const {
    for (int64_t l = 0; l < terms; ++l, target += width) {
      const auto found = at.term(start + l);
      for (int64_t i = 0; i < count; ++i) target[i] = at.value(found, first + i);
      for (int64_t i = count; i < width; ++i) target[i] = 0.0f;
    }
  }
};

// Which place each tap reads or writes, for each place of the other side; -1 where there is none.
struct Places {
  std::vector<int64_t> found;
  int64_t size;

  // of an image's rows or columns: the output that a tap over it belongs to
  static Places outputs(int64_t size, int64_t kernel, int64_t out, const Steps& steps) {
    Places places{std::vector<int64_t>(size * kernel), size};
    for (int64_t tap = 0; tap < kernel; ++tap)
      for (int64_t at = 0; at < size; ++at) {
        const int64_t moved = at + steps.before - tap * steps.dilation;
        places.found[tap * size + at] =
            moved >= 0 && moved % steps.stride == 0 && moved / steps.stride < out ? moved / steps.stride : -1;
      }
    return places;
  }
  // of an output's rows or columns: what a tap reads
  static Places images(int64_t size, int64_t kernel, int64_t out, const Steps& steps) {
    Places places{std::vector<int64_t>(out * kernel), out};
    for (int64_t tap = 0; tap < kernel; ++tap)
      for (int64_t at = 0; at < out; ++at) {
        const int64_t read = at * steps.stride - steps.before + tap * steps.dilation;
        places.found[tap * out + at] = read >= 0 && read < size ? read : -1;
      }
    return places;
  }
  int64_t operator()(int64_t tap, int64_t at) const { return found[tap * size + at]; }
};

template <typename Body>
void each_product(int64_t count, const Body& body) {
  if (count < gemm::many_matrices()) {
    for (int64_t number = 0; number < count; ++number) body(number);
    return;
  }
  parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t number = first; number < last; ++number) body(number);
  });
}

// A filter and a tap, with the outputs that the tap's column and row belong to.
template <typename T>
struct WeightsOfChannels {
  const T* w;
  int64_t filter, channel, row, column, kernel_h, kernel_w;  // strides, and the kernel's sizes

  const T* term(int64_t l) const {
    return w + l / (kernel_h * kernel_w) * filter + l / kernel_w % kernel_h * row + l % kernel_w * column;
  }
  float value(const T* found, int64_t c) const { return load_as_float(found[c * channel]); }
};

template <typename T>
struct ArrivingAtPixels {
  const T* dy;
  int64_t filter, row, column, kernel_h, kernel_w, width;
  const Places &rows, &columns;
  struct Term {
    const T* dy;
    int64_t r, s;
  };

  Term term(int64_t l) const {
    return {dy + l / (kernel_h * kernel_w) * filter, l / kernel_w % kernel_h, l % kernel_w};
  }
  float value(const Term& found, int64_t pixel) const {
    const int64_t p = rows(found.r, pixel / width), q = columns(found.s, pixel % width);
    return p < 0 || q < 0 ? 0.0f : load_as_float(found.dy[p * row + q * column]);
  }
};

/// dx of dy and w, tile by tile; the sizes are those of the convolution.
template <typename B, typename T>
void image_gradient(const TensorView& w, const TensorView& dy, const TensorView& dx, const Shape& s) {
  OPFORGE_CHECK(s.height == 1 || dx.stride(2) == s.width * dx.stride(3), ValueError,
                "the pixels of dx must lie so far apart, one from the next");
  const Places rows = Places::outputs(s.height, s.kernel_h, s.out_h, s.rows),
               columns = Places::outputs(s.width, s.kernel_w, s.out_w, s.cols);
  each_product(s.batch * s.groups, [&](int64_t number) {
    const int64_t n = number / s.groups, g = number % s.groups;
    const Gathered<WeightsOfChannels<T>> left{{data<const T>(w) + g * s.filters * w.stride(0), w.stride(0), w.stride(1),
                                               w.stride(2), w.stride(3), s.kernel_h, s.kernel_w}};
    const Gathered<ArrivingAtPixels<T>> right{{data<const T>(dy) + n * dy.stride(0) + g * s.filters * dy.stride(1),
                                               dy.stride(1), dy.stride(2), dy.stride(3), s.kernel_h, s.kernel_w,
                                               s.width, rows, columns}};
    const gemm::Elements<T> out{data<T>(dx) + n * dx.stride(0) + g * s.channels * dx.stride(1), dx.stride(1),
                                dx.stride(3)};
    gemm::multiply_packed<B>(left, right, out, s.channels, s.height * s.width, s.filters * s.taps(),
                             [](float*, int64_t, int64_t, int64_t) {});
  });
}

// An output of an image, of all filters.
template <typename T>
struct ArrivingForFilters {
  const T* dy;
  int64_t image, filter, row, column, out_h, out_w;

  const T* term(int64_t l) const {
    return dy + l / (out_h * out_w) * image + l / out_w % out_h * row + l % out_w * column;
  }
  float value(const T* found, int64_t f) const { return load_as_float(found[f * filter]); }
};

template <typename T>
struct ReadByWeights {
  const T* x;
  int64_t image, channel, row, column, kernel_h, kernel_w, out_h, out_w;
  const Places &rows, &columns;
  struct Term {
    const T* x;
    int64_t p, q;
  };

  Term term(int64_t l) const { return {x + l / (out_h * out_w) * image, l / out_w % out_h, l % out_w}; }
  float value(const Term& found, int64_t weight) const {
    const int64_t h = rows(weight / kernel_w % kernel_h, found.p), v = columns(weight % kernel_w, found.q);
    return h < 0 || v < 0 ? 0.0f
                          : load_as_float(found.x[weight / (kernel_h * kernel_w) * channel + h * row + v * column]);
  }
};

/// dw of x and dy. Sums are taken over images and outputs in one order, whatever the threads: the same bits each time.
template <typename B, typename T>
void kernel_gradient(const TensorView& x, const TensorView& dy, const TensorView& dw, const Shape& s) {
  OPFORGE_CHECK_CONTIGUOUS(dw);
  const Places rows = Places::images(s.height, s.kernel_h, s.out_h, s.rows),
               columns = Places::images(s.width, s.kernel_w, s.out_w, s.cols);
  const int64_t terms = s.batch * s.out_h * s.out_w;
  if (terms == 0) {
    std::fill(data<T>(dw), data<T>(dw) + dw.numel(), store_from_float<T>(0.0f));
    return;
  }
  each_product(s.groups, [&](int64_t g) {
    const Gathered<ArrivingForFilters<T>> left{{data<const T>(dy) + g * s.filters * dy.stride(1), dy.stride(0),
                                                dy.stride(1), dy.stride(2), dy.stride(3), s.out_h, s.out_w}};
    const Gathered<ReadByWeights<T>> right{{data<const T>(x) + g * s.channels * x.stride(1), x.stride(0), x.stride(1),
                                            x.stride(2), x.stride(3), s.kernel_h, s.kernel_w, s.out_h, s.out_w, rows,
                                            columns}};
    const gemm::Elements<T> out{data<T>(dw) + g * s.filters * s.terms(), s.terms(), 1};
    gemm::multiply_packed<B>(left, right, out, s.filters, s.terms(), terms, [](float*, int64_t, int64_t, int64_t) {});
  });
}

}  // namespace conv
}  // namespace opforge

#endif  // OPFORGE_CONV_GRADIENTS_HOST_H_
