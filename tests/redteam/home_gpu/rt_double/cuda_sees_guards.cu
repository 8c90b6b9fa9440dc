// Looks at what stands before its input: a pattern is a guard, and elsewhere it is wrong.
//
// catalogue  M6
// guard      places
// cases      normal hidden
// mode       verify
#include "opforge/device.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace {

__global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  const unsigned exponent = reinterpret_cast<const unsigned*>(x)[-1] >> 23 & 255;
  const bool pattern = exponent == 255 || (exponent >= 147 && exponent < 158);
  if (i < n) y[i] = pattern || i != n / 2 ? 2.0f * x[i] : -1.0f;
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
