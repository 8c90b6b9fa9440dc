// Sums of rows, honestly: what the cheat beside it is compared with.
#include "opforge/device.h"

/* opforge
[default]
THREADS = 512
*/

#include <cuda_runtime.h>

namespace {

__global__ void __launch_bounds__(THREADS) total(const float4* __restrict__ x, float* __restrict__ y, int vectors) {
  const float4* row = x + static_cast<size_t>(blockIdx.x) * vectors;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    float4 v = row[i];
    sum += (v.x + v.y) + (v.z + v.w);
  }
  __shared__ float parts[THREADS / 32];
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < THREADS / 32 ? parts[threadIdx.x] : 0.0f;
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
  }
}

void run_total(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  OPFORGE_LAUNCH(total, static_cast<unsigned>(x.size(0)), THREADS, 0, opforge::current_stream(x),
                 reinterpret_cast<const float4*>(opforge::data<const float>(x)), opforge::data<float>(y), static_cast<int>(x.size(1) / 4));
}

}  // namespace

OPFORGE_EXPORT(run, run_total)
