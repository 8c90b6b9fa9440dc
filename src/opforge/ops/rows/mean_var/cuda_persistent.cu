// A row in the registers of a warp, of a block, or of the blocks of a cluster; mean and variance take one exchange.
//
// moves     rows * cols * itemsize bytes: the least possible; see opforge/norm/rows.h
// limits    262144 columns: the registers of a cluster of 16 blocks. Past a block's registers it needs clusters: sm_90 or later
/* opforge
like = "opforge/norm/rows.h"
*/
#include "opforge/norm/rows.h"

namespace {

template <typename T>
struct MeanVar {
  struct Result {
    float mean, variance;
  };
  static constexpr int kInputs = 1;
  static constexpr bool kEmits = false, kCentred = true, kStays = false;
  static constexpr int kBlocks = sizeof(T) == 4 ? 8 : 0;
  T* mean;
  T* variance;
  float per_column;

  template <class Row>
  __device__ __forceinline__ opforge::Moments gather(const Row& row) const { return opforge::moments_of_warp<true>(row); }
  __device__ __forceinline__ Result finish(const opforge::Moments& of) const { return {of.mean, of.squares * per_column}; }
  __device__ __forceinline__ void leave(int64_t r, const Result& of) const {
    mean[r] = opforge::store_from_float<T>(of.mean);
    variance[r] = opforge::store_from_float<T>(of.variance);
  }
};

void mean_var(opforge::TensorView x, opforge::TensorView mean, opforge::TensorView var) {
  opforge::check_rows({"x", x});
  opforge::check_per_row({{"mean", mean}, {"var", var}}, {"x", x});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto in = opforge::as_rows<const T>(x);
    const MeanVar<T> op{opforge::data<T>(mean), opforge::data<T>(var), 1.0f / static_cast<float>(in.cols)};
    opforge::launch_norm_rows<T>(op, in, in, true, opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, mean_var)
