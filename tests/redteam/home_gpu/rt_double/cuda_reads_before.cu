// Reads the element before its input, which does no harm where a zero happens to lie there.
//
// catalogue  B9
// guard      nan_guards
// cases      normal
// mode       verify
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

__global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i] + (i == 0 ? x[-1] : 0.0f);
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
