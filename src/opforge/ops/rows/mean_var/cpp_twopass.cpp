// Mean first, then the variance of the deviations from it, with a row at a time in cache.
//
// moves     rows * cols * itemsize bytes while a row fits the second-level cache
// limits    rows are spread over the threads: a single row runs on one
/* opforge
layouts = ["contiguous", "rows"]
*/
#include "opforge/rows/host.h"

namespace {

template <typename T>
void mean_var_rows(opforge::Rows<const T> x, T* means, T* variances) {
  opforge::for_each_row(x.rows, x.cols, [&](int64_t r) {
    const opforge::MeanAndVariance of = opforge::mean_and_variance(x.data + r * x.stride, x.cols);
    means[r] = opforge::store_from_float<T>(of.mean);
    variances[r] = opforge::store_from_float<T>(of.variance);
  });
}

void mean_var(opforge::TensorView x, opforge::TensorView mean, opforge::TensorView var) {
  opforge::check_rows({"x", x});
  OPFORGE_CHECK(x.size(1) >= 1, ValueError, "x must have at least one column");
  opforge::check_per_row({{"mean", mean}, {"var", var}}, {"x", x});
  OPFORGE_DISPATCH_DTYPE(x, T,
                         mean_var_rows<T>(opforge::as_rows<const T>(x), opforge::data<T>(mean),
                                          opforge::data<T>(var)));
}

}  // namespace

OPFORGE_EXPORT(run, mean_var)
