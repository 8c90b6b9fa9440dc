// The row stays on the chip: x is read once, mean and variance are two passes over registers.
//
// moves     rows * cols * itemsize bytes read, next to nothing written; see opforge/rows/device.h
// limits    one block per row at most: few, long rows leave most of a GPU idle;
//           a row longer than a block's shared memory (227 KiB on H100) is read twice
/* opforge
layouts = ["contiguous", "rows"]

[supports]
row_and_sums_stay_below_48_kib_or_the_row_exceeds_them = "cols <= 12032 or cols > 24576 or (dtype == 'float32' and cols > 12288) or (dtype != 'float32' and cols <= 24064)"
*/
#include "opforge/rows/device.h"

namespace {

template <typename T>
struct MeanVar {
  T* means;
  T* variances;

  template <class Row>
  __device__ __forceinline__ void operator()(Row& row, int64_t r) const {
    float sum = 0.0f;
    row.visit([&](int64_t, auto& x) {
      for (float v : x) sum += v;
    });
    const float mean = row.mean(sum);
    float squares = 0.0f;
    row.visit([&](int64_t, auto& x) {
      for (float v : x) squares += (v - mean) * (v - mean);
    });
    const float variance = row.mean(squares);
    if (row.leads()) {
      means[r] = opforge::store_from_float<T>(mean);
      variances[r] = opforge::store_from_float<T>(variance);
    }
  }
};

void mean_var(opforge::TensorView x, opforge::TensorView mean, opforge::TensorView var) {
  opforge::check_rows({"x", x});
  OPFORGE_CHECK(x.size(1) >= 1, ValueError, "x must have at least one column");
  opforge::check_per_row({{"mean", mean}, {"var", var}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const MeanVar<T> op{opforge::data<T>(mean), opforge::data<T>(var)};
    opforge::launch_rows<T>(op, opforge::as_rows<const T>(x), true, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, mean_var)
