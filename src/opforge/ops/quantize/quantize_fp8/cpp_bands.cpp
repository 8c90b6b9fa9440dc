// Bands of rows that share their scales (one row, or 128), spread over the threads: largest magnitudes first, then the rounding.
//
// moves     x is read from memory once and from the cache once more, q is written once. One scale for the whole tensor costs a
//           reading of x before that
// idea      the largest magnitude is found among the stored bits, so elements of 16 bits are converted once; the rounding has no
//           branches, and fewer operations than that of numeric/fp8.h, since what is not finite is known here
// limits    a single row with one scale runs on one thread
/* opforge
layouts = ["contiguous", "rows"]
*/
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>

#include "opforge/numeric/fp8.h"
#include "opforge/rows/host.h"

namespace {

using opforge::Rows;

constexpr int64_t kSide = 128;
constexpr float kLeast = 0x1p-126f;  // what zeros are divided by, too
constexpr float kFinite = 3.402823466e+38f;

enum Scaling { kTensor, kRow, kBlock, kTile };

// The bits of an element's magnitude, and those of infinity: they are ordered as the magnitudes are, and integers of two bytes are
// compared sixteen at a time.
inline int32_t magnitude_of(float value) { return static_cast<int32_t>(opforge::fp8::bits_of(value) & 0x7fffffffu); }
inline int16_t magnitude_of(opforge::Float16 value) { return static_cast<int16_t>(value.bits & 0x7fffu); }
inline int16_t magnitude_of(opforge::BFloat16 value) { return static_cast<int16_t>(value.bits & 0x7fffu); }

// Infinities and NaN have no place in a scale.
template <typename T>
float largest_of(const T* values, int64_t count) {
  using Bits = decltype(magnitude_of(T()));
  constexpr Bits kInfinity = std::is_same_v<T, float> ? 0x7f800000 : std::is_same_v<T, opforge::Float16> ? 0x7c00 : 0x7f80;
  Bits largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const Bits magnitude = magnitude_of(values[i]), finite = magnitude < kInfinity ? magnitude : Bits(0);
    largest = finite > largest ? finite : largest;
  }
  T found;
  std::memcpy(&found, &largest, sizeof(T));
  return opforge::load_as_float(found);
}

// As fp8::narrow of the quotient, in two thirds of the operations.
template <typename Q>
void round_to(const float* values, int64_t count, float scale, Q* out) {
  using opforge::fp8::bits_of;
  using opforge::fp8::float_of;
  using Format = typename Q::Format;
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr int32_t kLeastExponent = (127 - Format::kBias + 1) << 23;
  uint8_t* codes = reinterpret_cast<uint8_t*>(out);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float quotient = values[i] / scale, magnitude = std::min(std::fabs(quotient), Format::kLargest);
    // the numbers of an exponent are multiples of one step, and so are those of no exponent: at the float whose own step that is
    // the addition rounds, and leaves in its last bits how many steps there are
    const int32_t exponent = std::max(static_cast<int32_t>(bits_of(magnitude) & 0x7f800000u), kLeastExponent);
    const int32_t anchor = exponent + (kShift << 23);
    const int32_t steps = static_cast<int32_t>(bits_of(magnitude + float_of(anchor))) - anchor;
    const int32_t code = steps + ((exponent - kLeastExponent) >> kShift);
    const int32_t sign = static_cast<int32_t>(bits_of(quotient) >> 24 & 0x80u);
    // NaN, and what would saturate though it is no number of any size
    codes[i] = static_cast<uint8_t>(std::fabs(values[i]) <= kFinite ? code | sign : Format::kNanBits);
  }
}

// Rounds a row, or part of one.
template <typename T, typename Q>
void round_stored(const T* values, int64_t count, float scale, Q* out) {
  if constexpr (std::is_same_v<T, float>) {
    round_to(values, count, scale, out);
  } else {
    alignas(64) float buffer[kSide];
    for (int64_t c = 0; c < count; c += kSide) {
      const int64_t piece = std::min(kSide, count - c);
      opforge::convert_to_float(values + c, buffer, piece);
      round_to(buffer, piece, scale, out + c);
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
      for (int64_t r = first; r < last; ++r) found[r] = largest_of(x.data + r * x.stride, x.cols);
    });
    const float only = scale_for<Q>(*std::max_element(found.get(), found.get() + x.rows));
    opforge::parallel_for(0, x.rows, grain, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) round_stored(x.data + r * x.stride, x.cols, only, q.data + r * q.stride);
    });
    scales[0] = only;
    return;
  }
  // squares of a band are done side by side, so that memory and caches are read row by row
  const int64_t height = scaling == kTile ? kSide : 1, width = scaling == kRow ? x.cols : kSide;
  const int64_t bands = (x.rows + height - 1) / height, across = (x.cols + width - 1) / width;
  const int64_t s_row = scale.stride(0), s_block = scale.stride(1);
  opforge::parallel_for(0, bands, 1 + grain / height, [&](int64_t first, int64_t last) {
    const std::unique_ptr<float[]> found(new float[across]);
    for (int64_t band = first; band < last; ++band) {
      const int64_t r0 = band * height, r1 = std::min(x.rows, r0 + height);
      // calls body(values, codes, j, count) for the columns of scale j in each row
      const auto each_piece = [&](const auto& body) {
        for (int64_t r = r0; r < r1; ++r) {
          for (int64_t j = 0, c = 0; j < across; ++j, c += width) body(x.data + r * x.stride + c, q.data + r * q.stride + c, j, std::min(width, x.cols - c));
        }
      };
      std::fill(found.get(), found.get() + across, 0.0f);
      each_piece([&](const T* values, const Q*, int64_t j, int64_t count) { found[j] = std::max(found[j], largest_of(values, count)); });
      for (int64_t j = 0; j < across; ++j) scales[band * s_row + j * s_block] = found[j] = scale_for<Q>(found[j]);
      each_piece([&](const T* values, Q* codes, int64_t j, int64_t count) { round_stored(values, count, found[j], codes); });
    }
  });
}

void quantize_fp8(opforge::TensorView x, opforge::TensorView q, opforge::TensorView scale, int scaling, int) {
  opforge::check_rows({"x", x});
  opforge::check_rows({"q", q});
  OPFORGE_CHECK_SAME_SHAPE(x, q);
  OPFORGE_CHECK_NDIM(scale, 2);
  if (x.numel() == 0) {
    // a scale of nothing is that of zeros
    float* scales = opforge::data<float>(scale);
    for (int64_t i = 0; i < scale.size(0); ++i)
      for (int64_t j = 0; j < scale.size(1); ++j) scales[i * scale.stride(0) + j * scale.stride(1)] = kLeast;
    return;
  }
  OPFORGE_DISPATCH_DTYPE(x, T, OPFORGE_DISPATCH_FP8(q, Q, (quantize_rows<T, Q>(opforge::as_rows<const T>(x), opforge::as_rows<Q>(q), scale, static_cast<Scaling>(scaling)))));
}

}  // namespace

OPFORGE_EXPORT(run, quantize_fp8)
