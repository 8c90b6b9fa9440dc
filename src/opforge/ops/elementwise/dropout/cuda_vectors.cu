// 16-byte accesses; a thread makes the random words of its own elements, four from each block of the generator.
//
// moves     2 * elements * itemsize bytes: the least possible, no mask is stored
// limits    20 wide products for 4 elements: with 16-bit elements the arithmetic takes more than half of the time that memory does
/* opforge
[supports]
some_stay = "p < 1"

[default]
THREADS = 256
UNROLL = 4

[space]
THREADS = [128, 256, 512]
UNROLL = [1, 2, 4]

[limits]
one_block_does_not_outgrow_small_calls = "THREADS * UNROLL <= 1024"
*/
#include "opforge/elementwise/device.h"
#include "opforge/arch/packed.h"
#include "opforge/numeric/philox.h"

namespace {

template <typename T, bool kAligned>
__global__ void __launch_bounds__(THREADS) drop(opforge::Dropout dropout, const T* x, T* y, int64_t n) {
  constexpr int N = opforge::kVecSize<T>;
  using Packed = opforge::Packed<T, N>;
  const int64_t tiles = opforge::ceil_div(n, int64_t(THREADS) * UNROLL * N);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t start = (tile * THREADS * UNROLL + threadIdx.x) * N;
    Packed in[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int64_t i = start + u * THREADS * N;
      if (kAligned && i + N <= n) in[u] = Packed::load_once(x + i);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int64_t i = start + u * THREADS * N;
      float values[N];
      if (kAligned && i + N <= n) {
        in[u].unpack(values);
        dropout.apply(i, values);
        Packed::pack(values).store_once(y + i);
      } else if (i < n) {
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = i + j < n ? opforge::load_as_float(x[i + j]) : 0.0f;
        dropout.apply(i, values);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (i + j < n) y[i + j] = opforge::store_from_float<T>(values[j]);
        }
      }
    }
  }
}

void run_dropout(opforge::TensorView x, opforge::TensorView y, double p, int64_t seed) {
  OPFORGE_CHECK_SAME_SHAPE(x, y);
  OPFORGE_CHECK_SAME_DTYPE(x, y);
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_CONTIGUOUS(y);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_CHECK_DEVICE(y);
  const int64_t n = x.numel();
  if (n == 0) return;
  const opforge::Dropout dropout(p, seed);
  OPFORGE_DISPATCH_DTYPE(x, T, {
    const T* in = opforge::data<const T>(x);
    T* out = opforge::data<T>(y);
    const unsigned blocks = opforge::grid_for(opforge::ceil_div(n, int64_t(THREADS) * UNROLL * opforge::kVecSize<T>));
    if (reinterpret_cast<uintptr_t>(in) % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
      OPFORGE_LAUNCH((drop<T, true>), blocks, THREADS, 0, opforge::current_stream(x), dropout, in, out, n);
    } else {
      OPFORGE_LAUNCH((drop<T, false>), blocks, THREADS, 0, opforge::current_stream(x), dropout, in, out, n);
    }
  });
}

}  // namespace

OPFORGE_EXPORT(run, run_dropout)
