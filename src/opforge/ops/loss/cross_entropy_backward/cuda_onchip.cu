// The row waits in the registers of a warp, a block or a cluster of blocks; softmax is made again, which costs no traffic.
//
// moves     2 * rows * classes * itemsize bytes: the least possible; see opforge/rows/onchip.h
// limits    262144 classes: the registers of a cluster of 16 blocks. Past a block's registers (32768 classes of 16 bits,
//           16384 of 32) it needs clusters: sm_90 or later
/* opforge
like = "opforge/rows/onchip.h"
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "classes <= 262144"
ends_off_the_grid_fit = "classes <= 262141 or classes % 8 == 0 or dtype != 'float32'"
[limits]
row_fits_a_cluster = "classes * itemsize <= 262144 * VECS"
ends_off_the_grid_fit = "classes * itemsize + 16 - itemsize <= 262144 * VECS or classes % 8 == 0"
*/
#include "opforge/rows/softmax.h"
#include "opforge/loss/targets.h"

namespace {

// dx[c] = dloss * (softmax(x)[c] - (1 - smoothing) * [c == target] - smoothing / classes)
template <typename T>
struct Scores : opforge::SoftmaxRows, opforge::EmitsRow<T> {
  static constexpr int kInputs = 1;
  opforge::Rows<const T> x;
  const int64_t* target;
  const T* dloss;
  int64_t ignore_index;
  float smoothing;

  // no class has such an index: there is no answer
  __device__ __forceinline__ bool valid(int64_t right) const { return right >= 0 && right < x.cols; }
};

// All that is known of a row stays in registers, and the right class is found among the elements.
template <typename T>
struct Gradient : Scores<T> {
  struct Finished {
    float top, scale, weight, right_weight, spread;
    int right;
    bool counted;
  };

  __device__ __forceinline__ Finished finish(int64_t r, opforge::TopAndSum stat) const {
    const int64_t right = this->target[r];
    const float weight = opforge::load_as_float(this->dloss[r]);
    const bool valid = this->valid(right);
    Finished row{stat.top, opforge::reciprocal_approximate(stat.sum), weight, 0.0f, 0.0f, valid ? static_cast<int>(right) : -1, right != this->ignore_index};
    row.right_weight = (1.0f - this->smoothing) * weight;
    row.spread = this->smoothing / static_cast<float>(this->x.cols);
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

// Two words about a row, so that an SM has registers for two blocks of 1024 threads. The right class is written once more,
// by the thread that wrote it. Without label smoothing, for rows of a block or a cluster.
template <typename T>
struct LightGradient : Scores<T> {
  static constexpr bool kMends = true;
  struct Finished {
    float top, scale;  // top: NaN in rows that do not count, which no maximum is; scale: dloss / sum, NaN where there is no answer
  };

  __device__ __forceinline__ Finished finish(int64_t r, opforge::TopAndSum stat) const {
    const int64_t right = this->target[r];
    const float weight = this->valid(right) ? opforge::load_as_float(this->dloss[r]) : NAN;
    return {right == this->ignore_index ? NAN : stat.top, opforge::reciprocal_approximate(stat.sum) * weight};
  }
  template <int N>
  __device__ __forceinline__ void compute(int, const Finished& row, float (&result)[N], const float (&x)[N]) const {
    const opforge::Shift shift(row.top);
    const bool counted = row.top == row.top;
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = counted ? shift.exp(x[j]) * row.scale : 0.0f;
  }
  template <class Wrote>
  __device__ __forceinline__ void mend(int64_t r, const Finished& row, const Wrote& wrote) const {
    const int64_t right = this->target[r];
    if (right == this->ignore_index || !this->valid(right) || !wrote(static_cast<int>(right))) return;
    const float soft = opforge::Shift(row.top).exp(opforge::load_as_float(this->x.data[r * this->x.stride + right])) * row.scale;
    this->out(r)[right] = opforge::store_from_float<T>(soft - opforge::load_as_float(this->dloss[r]));
  }
};

template <class Op, typename T>
void launch(const opforge::Rows<const T>& x, const opforge::TensorView& target, const opforge::TensorView& dloss, const opforge::Rows<T>& dx, int64_t ignore_index,
            double smoothing, cudaStream_t stream) {
  Op op;
  op.into(dx);
  op.x = x;
  op.target = opforge::data<const int64_t>(target);
  op.dloss = opforge::data<const T>(dloss);
  op.ignore_index = ignore_index;
  op.smoothing = static_cast<float>(smoothing);
  opforge::launch_onchip_rows<T, Op, VECS, SLICE, PLAIN>(op, x, x, dx, stream);
}

void cross_entropy_backward(opforge::TensorView x, opforge::TensorView target, opforge::TensorView dloss, opforge::TensorView dx, int64_t ignore_index,
                            double label_smoothing) {
  opforge::check_same_rows({{"x", x}, {"dx", dx}});
  opforge::check_targets({"target", target}, {"x", x});
  opforge::check_per_row({{"dloss", dloss}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(target);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = opforge::as_rows<const T>(x);
    const auto out = opforge::as_rows<T>(dx);
    // what a warp takes is written sooner than it could be mended
    const bool light = label_smoothing == 0.0 && in.cols * static_cast<int64_t>(sizeof(T)) > opforge::kOnchipWarpBytes;
    const auto run = light ? launch<LightGradient<T>, T> : launch<Gradient<T>, T>;
    run(in, target, dloss, out, ignore_index, label_smoothing, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, cross_entropy_backward)
