// The row waits in the registers of a warp, a block or a cluster of blocks.
//
// moves     rows * classes * itemsize bytes, and the score of the right class once more, from L2; see opforge/rows/onchip.h
// limits    262144 classes: the registers of a cluster of 16 blocks. Past a block's registers (32768 classes of 16 bits,
//           16384 of 32) it needs clusters: sm_90 or later
// best      rows of up to 32 KiB, of whose blocks a multiprocessor has two: one loads while the other computes, and nothing is written meanwhile
/* opforge
like = "opforge/rows/onchip.h"
layouts = ["contiguous", "rows"]
[supports]
fits_a_cluster = "classes <= 262144"
ends_off_the_grid_fit = "classes <= 262141 or classes % 8 == 0 or dtype != 'float32'"
[best]
two_rows_on_a_multiprocessor = "classes * itemsize <= 32768"
[limits]
row_fits_a_cluster = "classes * itemsize <= 262144 * VECS"
ends_off_the_grid_fit = "classes * itemsize + 16 - itemsize <= 262144 * VECS or classes % 8 == 0"
*/
#include "opforge/loss/cross_entropy.h"

namespace {

template <typename T>
struct CrossEntropy : opforge::CrossEntropyRows<T> {
  static constexpr int kInputs = 1;
  static constexpr bool kEmits = false;
  using Stat = opforge::ScoreStat;
  T* loss;

  __device__ __forceinline__ Stat finish(int64_t, Stat stat) const { return stat; }
  __device__ __forceinline__ void leave(int64_t r, Stat stat) const {
    const int64_t right = this->target[r];
    float value = 0.0f;
    if (right != this->ignore_index) {
      value = NAN;  // no class has such an index
      if (right >= 0 && right < this->x.cols) {
        const float log_sum = opforge::Shift(stat.top).log_of(stat.sum, stat.top);
        value = log_sum - (opforge::load_as_float(this->x.data[r * this->x.stride + right]) - stat.top);
        // (without smoothing a masked class, -inf, must not reach the sum of all)
        if (this->smoothing != 0.0f) {
          const float all = log_sum + (stat.top - stat.all * this->per_class);
          value = (1.0f - this->smoothing) * value + this->smoothing * all;
        }
      }
    }
    loss[r] = opforge::store_from_float<T>(value);
  }
};

void cross_entropy(opforge::TensorView x, opforge::TensorView target, opforge::TensorView loss, int64_t ignore_index, double label_smoothing) {
  opforge::check_rows({"x", x});
  opforge::check_targets({"target", target}, {"x", x});
  opforge::check_per_row({{"loss", loss}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(target);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    CrossEntropy<T> op;
    op.set(x, target, ignore_index, label_smoothing);
    op.loss = opforge::data<T>(loss);
    opforge::launch_onchip_rows<T, CrossEntropy<T>, VECS, SLICE, PLAIN>(op, op.x, op.x, op.x, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, cross_entropy)
