// Row by row in float32 vectors, in parallel over all elements: bias_add(x, bias, y).
//
// A narrow bias is repeated until it fills a piece, so that short rows run as long ones.
#include "opforge/elementwise/host.h"

#include <vector>

namespace {

constexpr int64_t kWide = 1024;

template <typename T>
struct Rows {
  const T* x;
  const T* bias;
  T* y;
  int64_t cols, x_stride, y_stride;
};

// Elements [first, last), counted row by row.
template <typename T>
void add_range(const Rows<T>& rows, int64_t first, int64_t last) {
  const auto add = [](float a, float b) { return a + b; };
  int64_t row = first / rows.cols, col = first % rows.cols;
  while (first < last) {
    const int64_t n = rows.cols - col < last - first ? rows.cols - col : last - first;
    opforge::detail::map_range(0, n, rows.y + row * rows.y_stride + col, add,
                               rows.x + row * rows.x_stride + col, rows.bias + col);
    first += n;
    ++row;
    col = 0;
  }
}

template <typename T>
void add_rows(Rows<T> rows, int64_t elements) {
  std::vector<T> repeated;
  if (rows.cols < kWide && rows.x_stride == rows.cols && rows.y_stride == rows.cols) {
    const int64_t times = (kWide + rows.cols - 1) / rows.cols;
    repeated.reserve(times * rows.cols);
    for (int64_t i = 0; i < times; ++i) repeated.insert(repeated.end(), rows.bias, rows.bias + rows.cols);
    rows.bias = repeated.data();
    rows.cols = rows.x_stride = rows.y_stride = times * rows.cols;
  }
  opforge::parallel_for(0, elements, opforge::kElementwiseGrain,
                        [&](int64_t first, int64_t last) { add_range(rows, first, last); });
}

void bias_add(opforge::TensorView x, opforge::TensorView bias, opforge::TensorView y) {
  OPFORGE_CHECK_NDIM(x, 2);
  OPFORGE_CHECK_NDIM(bias, 1);
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, bias);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK(bias.size(0) == x.size(1), ValueError, "bias must have ", x.size(1), " elements (got ", bias.size(0), ")");
  if (x.numel() == 0) return;
  OPFORGE_CHECK_CONTIGUOUS(bias);
  OPFORGE_CHECK(x.size(1) == 1 || (x.stride(1) == 1 && y.stride(1) == 1), ValueError, "rows of x and y must be contiguous");
  const int64_t cols = x.size(1);
  // the stride of a single row may be anything
  const int64_t x_stride = x.size(0) == 1 ? cols : x.stride(0), y_stride = y.size(0) == 1 ? cols : y.stride(0);
  OPFORGE_DISPATCH_DTYPE(x, T,
                         add_rows(Rows<T>{opforge::data<const T>(x), opforge::data<const T>(bias), opforge::data<T>(y), cols, x_stride, y_stride},
                                  x.numel()));
}

}  // namespace

/* opforge
layouts = ["contiguous", "rows"]
*/
OPFORGE_EXPORT(run, bias_add)
