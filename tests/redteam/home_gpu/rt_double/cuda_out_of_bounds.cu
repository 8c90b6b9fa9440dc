// Writes far past the end of its result, where nobody's guard lies: right by every value, and found by memcheck alone.
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

__global__ void twice(const float* __restrict__ x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
  // a place 64 KiB behind the end, rewritten with what it holds
  if (i == 7) y[n + 16384] += 0.0f;
}

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  int n = static_cast<int>(x.numel());
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, opforge::current_stream(x), opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
