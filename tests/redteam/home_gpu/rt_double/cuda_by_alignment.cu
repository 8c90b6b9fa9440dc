// Wrong where its input begins 16 bytes past a line.
//
// catalogue  M6
// guard      places
// cases      normal hidden
// mode       verify
#include "opforge/device.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace {

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  const bool shifted = reinterpret_cast<std::uintptr_t>(x) % 64 == 16;
  if (i < n) y[i] = 2.0f * x[i] + (shifted && i == 0 ? 1.0f : 0.0f);
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
