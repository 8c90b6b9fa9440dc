// Token by token; the angles of one token stay in the cache for all of its heads.
//
// moves     4 * tokens * heads * half * itemsize bytes of x and y: the least possible
#include "opforge/host.h"

namespace {

// pair i of a head: elements i * step and i * step + apart
template <typename T>
void rotate(const T* x, const float* cos, const float* sin, T* y, int64_t tokens, int64_t heads, int64_t half,
            bool interleaved) {
  const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
  const int64_t grain = (1 << 14) / (heads * half + 1) + 1;  // tokens that are worth a thread
  opforge::parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < half; ++i) {
          const int64_t at = (t * heads + h) * 2 * half + i * step;
          const float c = cos[t * half + i], s = sin[t * half + i];
          const float a = opforge::load_as_float(x[at]), b = opforge::load_as_float(x[at + apart]);
          y[at] = opforge::store_from_float<T>(a * c - b * s);
          y[at + apart] = opforge::store_from_float<T>(b * c + a * s);
        }
  });
}

// style: 0 halves, 1 interleaved, as among the choices of op.py
void run(opforge::TensorView x, opforge::TensorView cos, opforge::TensorView sin, opforge::TensorView y, int64_t style) {
  OPFORGE_CHECK_NDIM(x, 3);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_SAME_SHAPE(cos, sin);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(cos);
  OPFORGE_CHECK_CONTIGUOUS(sin);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         rotate<T>(opforge::data<const T>(x), opforge::data<const float>(cos),
                                   opforge::data<const float>(sin), opforge::data<T>(y), x.size(0), x.size(1),
                                   cos.size(1), style == 1));
}

}  // namespace

OPFORGE_EXPORT(run, run)
