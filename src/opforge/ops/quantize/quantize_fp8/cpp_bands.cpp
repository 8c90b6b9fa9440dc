// Bands of rows that share their scales (one row, or 128), spread over the threads: largest magnitudes first, then the rounding.
//
// moves     x is read from memory once and from the cache once more, q is written once. One scale for the whole tensor costs a
//           reading of x before that
// idea      numeric/fp8.h rounds without branches, so both passes are vector loops over 128 columns at a time
// limits    a single row runs on one thread
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <algorithm>
#include <memory>

#include "opforge/numeric/fp8.h"
#include "opforge/rows/host.h"

namespace {

using opforge::Rows;

constexpr int64_t kSide = 128;
constexpr float kLeast = 0x1p-126f;  // what zeros are divided by, too
constexpr float kFinite = 3.402823466e+38f;

enum Scaling { kTensor, kRow, kBlock, kTile };

// Infinities and NaN have no place in a scale.
float largest_of(const float* values, int64_t count) {
  float largest = 0.0f;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    const float finite = magnitude <= kFinite ? magnitude : 0.0f;
    largest = finite > largest ? finite : largest;
  }
  return largest;
}

template <typename Q>
void round_to(const float* values, int64_t count, float scale, Q* out) {
  uint8_t* codes = reinterpret_cast<uint8_t*>(out);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t code = opforge::fp8::narrow<typename Q::Format>(values[i] / scale);
    // NaN, and what would saturate though it is no number of any size
    codes[i] = std::fabs(values[i]) <= kFinite ? code : static_cast<uint8_t>(Q::Format::kNanBits);
  }
}

// Calls body(values, r, c, count) for pieces of up to 128 columns of rows [first, last), as floats.
template <typename T, typename Body>
void each_piece(const Rows<const T>& x, int64_t first, int64_t last, const Body& body) {
  alignas(64) float buffer[kSide];
  for (int64_t r = first; r < last; ++r) {
    for (int64_t c = 0; c < x.cols; c += kSide) {
      const int64_t count = std::min(kSide, x.cols - c);
      opforge::convert_to_float(x.data + r * x.stride + c, buffer, count);
      body(buffer, r, c, count);
    }
  }
}

template <typename Q>
float scale_for(float largest) {
  return std::max(largest / Q::Format::kLargest, kLeast);
}

template <typename T, typename Q>
void quantize_rows(const Rows<const T>& x, const Rows<Q>& q, const opforge::TensorView& scale, Scaling scaling) {
  float* scales = opforge::data<float>(scale);
  const int64_t grain = 1 + 16384 / x.cols;
  if (scaling == kTensor) {
    const std::unique_ptr<float[]> found(new float[x.rows]);
    opforge::parallel_for(0, x.rows, grain, [&](int64_t first, int64_t last) {
      std::fill(found.get() + first, found.get() + last, 0.0f);
      each_piece(x, first, last, [&](const float* values, int64_t r, int64_t, int64_t count) { found[r] = std::max(found[r], largest_of(values, count)); });
    });
    const float only = scale_for<Q>(*std::max_element(found.get(), found.get() + x.rows));
    opforge::parallel_for(0, x.rows, grain, [&](int64_t first, int64_t last) {
      each_piece(x, first, last, [&](const float* values, int64_t r, int64_t c, int64_t count) { round_to(values, count, only, q.data + r * q.stride + c); });
    });
    scales[0] = only;
    return;
  }
  const int64_t height = scaling == kTile ? kSide : 1, across = scaling == kRow ? 1 : (x.cols + kSide - 1) / kSide;
  const int64_t bands = (x.rows + height - 1) / height, s_row = scale.stride(0), s_block = scale.stride(1);
  opforge::parallel_for(0, bands, 1 + grain / height, [&](int64_t first_band, int64_t last_band) {
    const std::unique_ptr<float[]> found(new float[across]);
    for (int64_t band = first_band; band < last_band; ++band) {
      const int64_t first = band * height, last = std::min(x.rows, first + height);
      const auto place = [&](int64_t c) { return scaling == kRow ? 0 : c / kSide; };
      std::fill(found.get(), found.get() + across, 0.0f);
      each_piece(x, first, last, [&](const float* values, int64_t, int64_t c, int64_t count) {
        found[place(c)] = std::max(found[place(c)], largest_of(values, count));
      });
      for (int64_t j = 0; j < across; ++j) scales[band * s_row + j * s_block] = found[j] = scale_for<Q>(found[j]);
      each_piece(x, first, last, [&](const float* values, int64_t r, int64_t c, int64_t count) { round_to(values, count, found[place(c)], q.data + r * q.stride + c); });
    }
  });
}

void quantize_fp8(opforge::TensorView x, opforge::TensorView q, opforge::TensorView scale, int scaling, int) {
  opforge::check_rows({"x", x});
  opforge::check_rows({"q", q});
  OPFORGE_CHECK_SAME_SHAPE(x, q);
  OPFORGE_CHECK_NDIM(scale, 2);
  if (x.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(x, T, OPFORGE_DISPATCH_FP8(q, Q, (quantize_rows<T, Q>(opforge::as_rows<const T>(x), opforge::as_rows<Q>(q), scale, static_cast<Scaling>(scaling)))));
}

}  // namespace

OPFORGE_EXPORT(run, quantize_fp8)
