// The row waits in the registers of a warp, a block or a cluster of blocks; softmax is made again, which costs no traffic.
//
// moves     2 * rows * classes * itemsize bytes: the least possible; see opforge/onchip_rows.h
// limits    262144 classes: the registers of a cluster of 16 blocks. Past a block's registers (32768 classes of 16 bits,
//           16384 of 32) it needs clusters: sm_90 or later
/* opforge
like = "opforge/onchip_rows.h"
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "classes <= 262144"
[limits]
row_fits_a_cluster = "classes * itemsize <= 262144 * VECS"
*/
#include "opforge/softmax_rows.h"
#include "opforge/targets.h"

namespace {

template <typename T>
struct Gradient : opforge::SoftmaxRows, opforge::EmitsRow<T> {
  static constexpr int kInputs = 1;
  struct Finished {
    float top, scale, weight, right_weight, spread;
    int right;
    bool counted;
  };
  const int64_t* target;
  const T* dloss;
  int64_t classes, ignore_index;
  float smoothing;

  __device__ __forceinline__ Finished finish(int64_t r, Stat stat) const {
    const int64_t right = target[r];
    const float weight = opforge::load_as_float(dloss[r]);
    const bool valid = right >= 0 && right < classes;
    Finished row{stat.top, opforge::reciprocal_approximate(stat.sum), weight, 0.0f, 0.0f, valid ? static_cast<int>(right) : -1, right != ignore_index};
    row.right_weight = (1.0f - smoothing) * weight;
    row.spread = smoothing / static_cast<float>(classes);
    // no class has such an index: there is no answer
    if (!valid) row.weight = NAN;
    return row;
  }
  template <int N>
  __device__ __forceinline__ void compute(int c, const Finished& row, float (&result)[N], const float (&x)[N]) const {
    const opforge::Shift shift(row.top);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float value = (shift.exp(x[j]) * row.scale - row.spread) * row.weight;
      if (c + j == row.right) value -= row.right_weight;
      result[j] = row.counted ? value : 0.0f;
    }
  }
};

void cross_entropy_backward(opforge::TensorView x, opforge::TensorView target, opforge::TensorView dloss, opforge::TensorView dx, int64_t ignore_index,
                            double label_smoothing) {
  opforge::check_rows_alike({{"x", x}, {"dx", dx}});
  opforge::check_targets({"target", target}, {"x", x});
  opforge::check_per_row({{"dloss", dloss}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(target);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = opforge::as_rows<const T>(x);
    const auto out = opforge::as_rows<T>(dx);
    Gradient<T> op;
    op.target = opforge::data<const int64_t>(target);
    op.dloss = opforge::data<const T>(dloss);
    op.into(out);
    op.classes = in.cols;
    op.ignore_index = ignore_index;
    op.smoothing = static_cast<float>(label_smoothing);
    opforge::launch_onchip_rows<T, Gradient<T>, VECS, SLICE, PLAIN>(op, in, in, out, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, cross_entropy_backward)
