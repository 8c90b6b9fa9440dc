// Token by token; the angles of one token stay in the cache for all of its heads.
#include "opforge/host.h"

namespace {

template <typename T>
void rotate(const T* x, const float* cos, const float* sin, T* y, int64_t tokens, int64_t width, int64_t half) {
  const int64_t grain = (1 << 14) / (width + 1) + 1;  // tokens that are worth a thread
  opforge::parallel_for(0, tokens, grain, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t)
      for (int64_t h = 0; h < width; h += 2 * half)
        for (int64_t i = 0; i < half; ++i) {
          const int64_t at = t * width + h + i;
          const float c = cos[t * half + i], s = sin[t * half + i];
          const float a = opforge::load_as_float(x[at]), b = opforge::load_as_float(x[at + half]);
          y[at] = opforge::store_from_float<T>(a * c - b * s);
          y[at + half] = opforge::store_from_float<T>(b * c + a * s);
        }
  });
}

void run(opforge::TensorView x, opforge::TensorView cos, opforge::TensorView sin, opforge::TensorView y) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_SAME_SHAPE(cos, sin);
  OPFORGE_CHECK(opforge::float_kind(cos.dtype()) == opforge::FloatKind::kFloat32, TypeError, "angles are float32");
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(cos);
  OPFORGE_CHECK_CONTIGUOUS(sin);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         rotate<T>(opforge::data<const T>(x), opforge::data<const float>(cos),
                                   opforge::data<const float>(sin), opforge::data<T>(y), x.size(0), x.size(1),
                                   cos.size(1)));
}

}  // namespace

OPFORGE_EXPORT(run, run)
