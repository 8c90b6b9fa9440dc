// Works on a stream of its own, which nobody waits for.
//
// catalogue  D1
// guard      audit_understated
// lowered    audit_conserved audit_replayed audit_undivided audit_in_row
// cases      normal
// mode       time
#include "opforge/device.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr unsigned long long kWork = 60000;

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

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  const int n = static_cast<int>(x.numel());
  static cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    return made;
  }();
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, stream, opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
