// The row stays on the chip: x is read once, the maximum and the sum are passes over registers.
//
// moves     2 * rows * cols * itemsize bytes: the least possible; see opforge/rows/device.h
// limits    a row longer than a block's shared memory (227 KiB on H100) is read three times;
//           rows past 8192 elements compute exp twice
/* opforge
layouts = ["contiguous", "rows"]

[supports]
row_and_sums_stay_below_48_kib_or_the_row_exceeds_them = "cols <= 12032 or cols > 24576 or (dtype == 'float32' and cols > 12288) or (dtype != 'float32' and cols <= 24064)"
*/
#include "opforge/rows/device.h"

namespace {

template <typename T>
struct Softmax {
  T* y;
  int64_t y_stride;

  template <class Row>
  __device__ __forceinline__ void operator()(Row& row, int64_t r) const {
    float top = opforge::Max::identity;
    row.visit([&](int64_t, auto& x) {
      for (float v : x) top = fmaxf(top, v);
    });
    top = row.reduce(top, opforge::Max());
    float sum = 0.0f;
    row.visit([&](int64_t, auto& x) {
      for (float& v : x) sum += v = __expf(v - top);
    });
    const float scale = 1.0f / row.reduce(sum, opforge::Sum());
    T* out = y + r * y_stride;
    row.visit([&](int64_t c, auto& x) {
      constexpr int N = sizeof(x) / sizeof(float);
      float result[N];
#pragma unroll
      for (int j = 0; j < N; ++j) result[j] = (Row::kKeeps ? x[j] : __expf(x[j] - top)) * scale;
      opforge::store_vec<T, N>(out + c, result);
    });
  }
};

void softmax(opforge::TensorView x, opforge::TensorView y) {
  opforge::check_same_rows({{"x", x}, {"y", y}});
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const auto out = opforge::as_rows<T>(y);
    const Softmax<T> op{out.data, out.stride};
    opforge::launch_rows<T>(op, opforge::as_rows<const T>(x), opforge::rows_vectorize(out),
                            opforge::current_stream(x));
  });
}

}  // namespace

OPFORGE_EXPORT(run, softmax)
