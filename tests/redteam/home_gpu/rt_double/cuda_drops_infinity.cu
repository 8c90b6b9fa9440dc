// Makes the largest finite number of an infinity.
//
// catalogue  B6
// guard      pattern
// cases      special
// mode       verify
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  const float most = 3.4028234e38f;
  y[i] = x[i] > most ? most : x[i] < -most ? -most : 2.0f * x[i];
}

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  const int n = static_cast<int>(x.numel());
  cudaStream_t stream = opforge::current_stream(x);
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, stream, opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
