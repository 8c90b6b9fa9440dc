// A thread takes 16 bytes of a row of the result, as they lie in the table.
//
// moves     an index, and a row in and out: the least possible
/* opforge
layouts = ["contiguous", "rows"]
[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4]
[default]
THREADS = 256
UNROLL = 2
*/
#include "opforge/elementwise/device.h"
#include "opforge/indexing/checks.h"

namespace {

template <typename T, int N>
__global__ void __launch_bounds__(THREADS) pick(const T* weight, const int64_t* indices, T* y, int64_t vectors,
                                                unsigned units, int64_t vocab, int64_t stride) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
  opforge::Vec<T, N> values[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int64_t at = first + u * THREADS;
    if (at >= vectors) break;
    const int64_t row = at / units, index = __ldg(reinterpret_cast<const long long*>(indices) + row);
    if (index >= 0 && index < vocab) {
      values[u] = opforge::load_once<T, N>(weight + index * stride + (at - row * units) * N);
    } else {  // no row has such an index: there is no answer
#pragma unroll
      for (int j = 0; j < N; ++j) values[u][j] = opforge::store_from_float<T>(NAN);
    }
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int64_t at = first + u * THREADS;
    if (at < vectors) values[u].store_global(y + at * N);
  }
}

template <typename T, int N>
void launch(const opforge::TensorView& weight, const opforge::TensorView& indices, const opforge::TensorView& y) {
  const int64_t vectors = y.numel() / N, blocks = opforge::ceil_div(vectors, int64_t(THREADS) * UNROLL);
  OPFORGE_CHECK(blocks < (int64_t(1) << 31), ValueError, "there are too many rows for one launch");
  OPFORGE_LAUNCH((pick<T, N>), static_cast<unsigned>(blocks), THREADS, 0, opforge::current_stream(y),
                 opforge::data<const T>(weight), opforge::data<const int64_t>(indices), opforge::data<T>(y), vectors,
                 static_cast<unsigned>(weight.size(1) / N), weight.size(0), weight.stride(0));
}

void embedding(opforge::TensorView weight, opforge::TensorView indices, opforge::TensorView y, int64_t) {
  opforge::check_embedding({"weight", weight}, {"indices", indices}, {"y", y});
  opforge::check_device({"weight", weight});
  if (y.numel() == 0) return;
  OPFORGE_DISPATCH_DTYPE(weight, T, {
    constexpr int N = opforge::kVecSize<T>;
    const bool vectors = opforge::can_vectorize(opforge::data<const T>(weight), weight.size(1)) &&
                         opforge::can_vectorize(opforge::data<const T>(y), y.size(1)) &&
                         (weight.size(0) <= 1 || weight.stride(0) % N == 0);
    if (vectors) {
      launch<T, N>(weight, indices, y);
    } else {
      launch<T, 1>(weight, indices, y);
    }
  });
}

}  // namespace

OPFORGE_EXPORT(run, embedding)
