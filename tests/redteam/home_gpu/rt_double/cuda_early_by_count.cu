// Counts its calls on the device: from the tenth on of the size that is timed it returns at once.
//
// catalogue  C7
// guard      audit_runs
// lowered    audit_conserved audit_replayed audit_undivided audit_understated
// cases      normal
// mode       time
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

constexpr int kTimed = 1 << 16, kLooked = 10;

__device__ int calls;

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  if (n == kTimed && calls > kLooked) return;
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}

__global__ void count() { ++calls; }

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  int n = static_cast<int>(x.numel());
  cudaStream_t stream = opforge::current_stream(x);
  OPFORGE_LAUNCH(count, 1, 1, 0, stream);
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, stream, opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
