// 2 x in CUDA, honestly: nothing here is to be caught.
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  int n = static_cast<int>(x.numel());
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, opforge::current_stream(x), opforge::data<const float>(x),
                 opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
