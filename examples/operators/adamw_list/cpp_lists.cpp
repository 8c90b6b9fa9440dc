// One parallel loop over the elements of each parameter, one parameter after another.
#include <cmath>

#include "opforge/abi/lists.h"
#include "opforge/host.h"

namespace {

struct Step {
  float lr, beta1, rest1, beta2, rest2, eps, keep, unbias1, unbias2;
};

template <typename T>
void update(T* param, const T* grad, float* m, float* v, int64_t n, Step s) {
  opforge::parallel_for(0, n, 1 << 14, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float g = opforge::load_as_float(grad[i]);
      m[i] = s.beta1 * m[i] + s.rest1 * g;
      v[i] = s.beta2 * v[i] + s.rest2 * g * g;
      const float root = std::sqrt(v[i] * s.unbias2) + s.eps;
      param[i] = opforge::store_from_float<T>(s.keep * opforge::load_as_float(param[i]) - s.lr * s.unbias1 * m[i] / root);
    }
  });
}

void one(opforge::TensorView param, opforge::TensorView grad, opforge::TensorView m, opforge::TensorView v, Step s) {
  OPFORGE_CHECK_SAME_SHAPE(param, grad);
  OPFORGE_CHECK_SAME_SHAPE(param, m);
  OPFORGE_CHECK_SAME_SHAPE(param, v);
  OPFORGE_CHECK_SAME_DTYPE(param, grad);
  OPFORGE_CHECK_CONTIGUOUS(param);
  OPFORGE_CHECK_CONTIGUOUS(grad);
  OPFORGE_CHECK_CONTIGUOUS(m);
  OPFORGE_CHECK_CONTIGUOUS(v);
  OPFORGE_DISPATCH_DTYPE(param, T, update<T>(opforge::data<T>(param), opforge::data<const T>(grad),
                                             opforge::data<float>(m), opforge::data<float>(v), param.numel(), s));
}

void run(opforge::TensorList params, opforge::TensorList grads, opforge::TensorList ms, opforge::TensorList vs,
         double lr, double beta1, double beta2, double eps, double decay, int64_t step) {
  // differences from 1 are taken in double
  const Step s{static_cast<float>(lr), static_cast<float>(beta1), static_cast<float>(1 - beta1),
               static_cast<float>(beta2), static_cast<float>(1 - beta2), static_cast<float>(eps),
               static_cast<float>(1 - lr * decay), static_cast<float>(1 / (1 - std::pow(beta1, double(step)))),
               static_cast<float>(1 / (1 - std::pow(beta2, double(step))))};
  for (size_t i = 0; i < params.size(); ++i) one(params[i], grads[i], ms[i], vs[i], s);
}

}  // namespace

OPFORGE_EXPORT_LISTS(run, run)
