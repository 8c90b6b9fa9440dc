// Of the calls that are captured in one graph, all but the first launch kernels that do nothing.
//
// catalogue  M1
// guard      audit_in_row
// lowered    audit_conserved audit_replayed audit_undivided audit_understated
// cases      normal
// mode       time
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

constexpr unsigned long long kWork = 6000;

__device__ unsigned long long now() {
  unsigned long long value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  for (unsigned long long began = now(); now() - began < kWork;) {
  }
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}

__global__ void idle(float* y) {
  if (y == nullptr) *y = 0.0f;
}

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  const int n = static_cast<int>(x.numel());
  cudaStream_t stream = opforge::current_stream(x);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  static unsigned long long seen = 0;
  cudaStreamGetCaptureInfo(stream, &status, &id);
  const bool again = status == cudaStreamCaptureStatusActive && id == seen;
  seen = id;
  // no element, one block, no wait
  if (again) {
    OPFORGE_LAUNCH(idle, 1, 32, 0, stream, opforge::data<float>(y));
    return;
  }
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, stream, opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
