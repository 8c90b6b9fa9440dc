// opforge/conv/host.h - convolutions of images on a CPU: register tiles of filters and pixels over planes that hold their padding.
//
// `Finish` is finish(line, count, filter, image, row, column): it changes `count` float32 results of one filter in place, neighbours
// from (row, column) on, before they are rounded and stored.
#ifndef OPFORGE_CONV_HOST_H_
#define OPFORGE_CONV_HOST_H_

#include <optional>

#include "opforge/conv/host_tile.h"
#include "opforge/conv/planes.h"

namespace opforge {
namespace conv {

constexpr int64_t kTogether = 4 << 20;  // floats of planes that are made at a time: as many images as fit, one at least
constexpr int64_t kNear = 1 << 18;      // floats of planes that filters come back to: half of a core's second cache

/// The finish of a bare convolution.
struct Unchanged {
  void operator()(float*, int64_t, int64_t, int64_t, int64_t, int64_t) const {}
};

// A filter's weights in a row of floats: those of w itself, or a copy. Terms are channels with taps inside, or taps with channels inside.
struct Filters {
  const float* data;
  bool channels_inside;
  std::optional<gemm::Buffer> copy;

  template <typename T>
  static Filters of(const TensorView& w, const Shape& s) {
    const auto neighbours = [&](int64_t c, int64_t r, int64_t q) {
      return (w.size(1) < 2 || w.stride(1) == c) && (w.size(2) < 2 || w.stride(2) == r) &&
             (w.size(3) < 2 || w.stride(3) == q) && (w.size(0) < 2 || w.stride(0) == s.terms());
    };
    const bool taps_inside = neighbours(s.taps(), s.kernel_w, 1),
               channels_inside = !taps_inside && neighbours(1, s.kernel_w * s.channels, s.channels);
    if constexpr (std::is_same<T, float>::value)
      if (taps_inside || channels_inside) return {opforge::data<const float>(w), channels_inside, std::nullopt};
    const int64_t filters = s.groups * s.filters;
    Filters made{nullptr, channels_inside, gemm::Buffer(filters * s.terms())};
    float* target = made.copy->get();
    made.data = target;
    parallel_for(0, filters, 1 + 16384 / s.terms(), [&](int64_t first, int64_t last) {
      for (int64_t f = first; f < last; ++f) {
        const T* source = opforge::data<const T>(w) + f * w.stride(0);
        float* line = target + f * s.terms();
        if (taps_inside || channels_inside) {
          convert_to_float(source, line, s.terms());
          continue;
        }
        for (int64_t c = 0; c < s.channels; ++c)
          for (int64_t r = 0; r < s.kernel_h; ++r)
            for (int64_t q = 0; q < s.kernel_w; ++q)
              *line++ = load_as_float(source[c * w.stride(1) + r * w.stride(2) + q * w.stride(3)]);
      }
    });
    return made;
  }
};

// Stores the sums of `rows` filters for pixels first … first + count - 1 of a plane, those that are outputs.
template <typename T, typename Finish>
inline void store_pixels(float* sums, int64_t width, const Shape& s, int64_t line, const TensorView& y, int64_t image,
                         int64_t filter, int64_t rows, int64_t first, int64_t count, const Finish& finish) {
  T* whole = data<T>(y) + image * y.stride(0) + filter * y.stride(1);
  for (int64_t at = 0; at < count;) {
    const int64_t p = (first + at) / line, q = (first + at) % line, now = std::min(count - at, s.out_w - q);
    if (now > 0) {
      T* target = whole + p * y.stride(2) + q * y.stride(3);
      for (int64_t i = 0; i < rows; ++i) {
        float* part = sums + i * width + at;
        finish(part, now, filter + i, image, p, q);
        if (y.stride(3) == 1) {
          convert_from_float(part, target + i * y.stride(1), now);
        } else {
          for (int64_t j = 0; j < now; ++j) target[i * y.stride(1) + j * y.stride(3)] = store_from_float<T>(part[j]);
        }
      }
    }
    at += std::min(count - at, line - q);
  }
}

template <typename Tile, typename T, typename Finish>
void convolve_tiled(const TensorView& x, const TensorView& w, const std::vector<float>& start, const TensorView& y,
                    const Shape& s, const Finish& finish) {
  Planes planes(s);
  const bool in_place = planes.lies_so<T>(x, s);
  if (in_place) planes.take(x);
  const Filters filters = Filters::of<T>(w, s);
  const std::vector<int64_t> offsets = planes.offsets(s, filters.channels_inside);
  // filters in blocks of nearly equal height
  const int64_t blocks = (s.filters + Tile::kRows - 1) / Tile::kRows, most = (s.filters + blocks - 1) / blocks;
  const int64_t width = (most == 1 ? Tile::kWide : Tile::kVectors) * Tile::kLanes;
  const int64_t pixels = planes.pixels(s), tiles = (pixels + width - 1) / width, slack = width;
  const int64_t wave = in_place ? s.batch : std::min(s.batch, std::max<int64_t>(1, kTogether / planes.image));
  gemm::Buffer made(in_place ? 1 : wave * planes.image + slack);
  if (!in_place) planes.data = made.get();
  // what one tile reads is read again by every block of filters
  const int64_t chunk =
      std::max<int64_t>(1, std::min(tiles, kNear / (width * planes.rows.count() * planes.cols.count() * s.channels)));
  const int64_t chunks = (tiles + chunk - 1) / chunk;
  for (int64_t image = 0; image < s.batch; image += wave) {
    const int64_t images = std::min(wave, s.batch - image);
    if (!in_place) fill_planes<T>(x, s, planes, image, images, made.get());
    const int64_t wholes = images * s.groups * chunks;
    const int64_t shares = std::min(blocks, std::max<int64_t>(1, 8 * gemm::max_threads() / wholes));
    const int64_t work = s.terms() * chunk * width * s.filters / shares;
    parallel_for(0, wholes * shares, 1 + 65536 / work, [&](int64_t first, int64_t last) {
      gemm::Buffer sums(most * width), copied(in_place ? s.terms() * width : 1);
      std::vector<int64_t> beside;
      for (int64_t task = first; task < last; ++task) {
        const int64_t share = task % shares, whole = task / shares, group = whole / chunks % s.groups,
                      own = whole / chunks / s.groups;
        const int64_t begin = whole % chunks * chunk, end = std::min(tiles, begin + chunk);
        const float* base =
            planes.data + (in_place ? image + own : own) * planes.image + group * s.channels * planes.channel;
        // the last tile of planes that are not ours is copied: behind them is whatever the caller has there
        const bool copies = in_place && end == tiles && pixels % width != 0;
        if (copies) {
          const int64_t from = (tiles - 1) * width;
          beside.resize(s.terms());
          for (int64_t l = 0; l < s.terms(); ++l) {
            beside[l] = l * width;
            float* line = copied.get() + l * width;
            std::copy(base + offsets[l] + from, base + offsets[l] + pixels, line);
            std::fill(line + pixels - from, line + width, 0.0f);
          }
        }
        for (int64_t block = blocks * share / shares; block < blocks * (share + 1) / shares; ++block) {
          const int64_t top = s.filters * block / blocks, rows = s.filters * (block + 1) / blocks - top,
                        filter = group * s.filters + top;
          for (int64_t tile = begin; tile < end; ++tile) {
            const int64_t at = tile * width, count = std::min(width, pixels - at);
            const int vectors = static_cast<int>((count + Tile::kLanes - 1) / Tile::kLanes);
            const bool copy = copies && tile == tiles - 1;
            tile_of<Tile>(static_cast<int>(rows), vectors)(
                filters.data + filter * s.terms(), s.terms(), copy ? copied.get() : base + at,
                copy ? beside.data() : offsets.data(), s.terms(), start.data() + filter, sums.get());
            store_pixels<T>(sums.get(), vectors * Tile::kLanes, s, planes.line(), y, image + own, filter, rows, at,
                            count, finish);
          }
        }
      }
    });
  }
}

/// y = finish(convolution of x with w, begun with the bias where there is one), in the registers that `isa` asks for.
template <int isa, typename T, typename Finish>
void convolve(const TensorView& x, const TensorView& w, const std::optional<TensorView>& bias, const TensorView& y,
              const Shape& s, const Finish& finish) {
  std::vector<float> start(s.groups * s.filters, 0.0f);
  if (bias.has_value()) {
    OPFORGE_CHECK(bias->ndim() == 1 && bias->size(0) == y.size(1), ValueError, "bias must have ", y.size(1),
                  " elements");
    OPFORGE_CHECK_SAME_DTYPE(x, *bias);
    for (size_t f = 0; f < start.size(); ++f)
      start[f] = load_as_float(data<const T>(*bias)[static_cast<int64_t>(f) * bias->stride(0)]);
  }
  if (y.numel() == 0) return;
  switch (gemm::instruction_set<isa>()) {
#if defined(__x86_64__)
    case 3:
      return convolve_tiled<Avx512Tile, T>(x, w, start, y, s, finish);
    case 2:
      return convolve_tiled<Avx2Tile, T>(x, w, start, y, s, finish);
#endif
    default:
      return convolve_tiled<PlainTile, T>(x, w, start, y, s, finish);
  }
}

}  // namespace conv
}  // namespace opforge

#endif  // OPFORGE_CONV_HOST_H_
