// One parallel pass in float32 vectors, both gradients while their piece of the inputs is in the first-level cache: silu_mul_backward(gate, up, dy, dgate, dup).
#include "opforge/abi/checks.h"
#include "opforge/elementwise/host.h"
#include "opforge/numeric/math.h"

/* opforge
any_rank = true
*/

namespace {

constexpr int64_t kPiece = 1024;

// y = gate s up with s the sigmoid of gate:  dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
template <typename T>
void gradients(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n) {
  const auto to_gate = [](float g, float u, float d) {
    const opforge::Sigmoid fraction = opforge::sigmoid(g);
    const float scale = 1.0f / fraction.total;
    return d * u * (fraction.share * scale) * std::fma(g, fraction.rest * scale, 1.0f);
  };
  const auto to_up = [](float g, float d) {
    const opforge::Sigmoid fraction = opforge::sigmoid(g);
    return d * g * fraction.share / fraction.total;
  };
  opforge::parallel_for(0, n, opforge::kElementwiseGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += kPiece) {
      const int64_t end = i + kPiece < last ? i + kPiece : last;
      opforge::detail::map_range(i, end, dgate, to_gate, gate, up, dy);
      opforge::detail::map_range(i, end, dup, to_up, gate, dy);
    }
  });
}

void silu_mul_backward(opforge::TensorView gate, opforge::TensorView up, opforge::TensorView dy, opforge::TensorView dgate, opforge::TensorView dup) {
  opforge::check_same_layout({{"gate", gate}, {"up", up}, {"dy", dy}, {"dgate", dgate}, {"dup", dup}});
  OPFORGE_DISPATCH_DTYPE(gate, T,
                         gradients(opforge::data<const T>(gate), opforge::data<const T>(up), opforge::data<const T>(dy), opforge::data<T>(dgate),
                                   opforge::data<T>(dup), gate.numel()));
}

}  // namespace

OPFORGE_EXPORT(run, silu_mul_backward)
