// Mean first, then the variance of the deviations from it, with a row at a time in cache.
//
// moves     rows * cols * itemsize bytes while a row of floats fits the second-level cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/host_rows.h"

namespace {

template <typename T>
void mean_var_rows(opforge::Rows<const T> x, T* means, T* variances) {
  const int64_t cols = x.cols;
  opforge::for_each_row(x.rows, cols, [&](int64_t r, float* buffer) {
    const float* row = opforge::row_as_float(x.data + r * x.stride, buffer, cols);
    const float mean = opforge::sum_over(row, cols, [](auto v) { return v; }) / cols;
    const float squares = opforge::sum_over(row, cols, [mean](auto v) {
      const auto centred = v - mean;
      return centred * centred;
    });
    means[r] = opforge::store_from_float<T>(mean);
    variances[r] = opforge::store_from_float<T>(squares / cols);
  });
}

void mean_var(opforge::TensorView x, opforge::TensorView mean, opforge::TensorView var) {
  OPFORGE_CHECK_ROWS(x);
  OPFORGE_CHECK(x.size(1) >= 1, ValueError, "x must have at least one column");
  OPFORGE_CHECK_PER_ROW(mean, x);
  OPFORGE_CHECK_PER_ROW(var, x);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         mean_var_rows<T>(opforge::as_rows<const T>(x), opforge::data<T>(mean),
                                          opforge::data<T>(var)));
}

}  // namespace

OPFORGE_EXPORT(run, mean_var)
