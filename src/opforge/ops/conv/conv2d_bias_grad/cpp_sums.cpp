// A sum in 32 parts for each filter, filters shared out among threads; channels_last is walked pixel by pixel, for all filters at once.
//
// moves     dy once
/* opforge
layouts = ["contiguous", "rows", "strided"]
*/
#include <vector>

#include "opforge/host.h"

namespace {

constexpr int64_t kParts = 32;

template <typename T>
void sums(const opforge::TensorView& dy, const opforge::TensorView& dbias) {
  const int64_t images = dy.size(0), filters = dy.size(1), rows = dy.size(2), columns = dy.size(3),
                pixels = images * rows * columns;
  T* out = opforge::data<T>(dbias);
  const int64_t grain = 1 + 65536 / (pixels + 1);
  opforge::parallel_for(0, filters, dy.stride(1) == 1 && grain < 16 ? 16 : grain, [&](int64_t first, int64_t last) {
    const int64_t own = last - first;
    // a part adds up what is so many apart: a sum of n terms is n / 32 additions long
    std::vector<float> parts(kParts * own, 0.0f), line(own);
    for (int64_t n = 0, at = 0; n < images; ++n)
      for (int64_t p = 0; p < rows; ++p) {
        const T* row = opforge::data<const T>(dy) + n * dy.stride(0) + p * dy.stride(2) + first * dy.stride(1);
        if (dy.stride(1) == 1) {
          for (int64_t q = 0; q < columns; ++q, ++at) {
            opforge::convert_to_float(row + q * dy.stride(3), line.data(), own);
            float* part = parts.data() + at % kParts * own;
            for (int64_t f = 0; f < own; ++f) part[f] += line[f];
          }
          continue;
        }
        for (int64_t f = 0; f < own; ++f) {
          const T* source = row + f * dy.stride(1);
          for (int64_t q = 0; q < columns; ++q)
            parts[(at + q) % kParts * own + f] += opforge::load_as_float(source[q * dy.stride(3)]);
        }
        at += columns;
      }
    for (int64_t half = kParts / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half * own; ++i) parts[i] += parts[half * own + i];
    for (int64_t f = 0; f < own; ++f) out[(first + f) * dbias.stride(0)] = opforge::store_from_float<T>(parts[f]);
  });
}

void conv2d_bias_grad(opforge::TensorView bias, opforge::TensorView dy, opforge::TensorView dbias) {
  OPFORGE_CHECK_NDIM(dy, 4);
  OPFORGE_CHECK_NDIM(dbias, 1);
  OPFORGE_CHECK_SAME_SHAPE(bias, dbias);
  OPFORGE_CHECK_SAME_DTYPE(dy, dbias);
  OPFORGE_CHECK(dbias.size(0) == dy.size(1), ValueError, "dbias must have ", dy.size(1), " elements");
  OPFORGE_DISPATCH_DTYPE(dy, T, sums<T>(dy, dbias));
}

}  // namespace

OPFORGE_EXPORT(run, conv2d_bias_grad)
