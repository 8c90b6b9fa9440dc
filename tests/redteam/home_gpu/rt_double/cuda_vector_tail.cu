// Stores four elements at a time, those behind the end among them.
//
// catalogue  B8
// guard      regions
// cases      odd
// mode       verify
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = 4 * (blockIdx.x * 256 + threadIdx.x);
  if (i >= n) return;
  for (int k = 0; k < 4; ++k) y[i + k] = 2.0f * x[min(i + k, n - 1)];
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
