// Counts its calls on the device, and does nothing in every second one of the size that is timed.
//
// catalogue  M2
// guard      audit_runs
// lowered    audit_in_row audit_conserved audit_replayed audit_undivided audit_understated audit_remembered
// cases      normal
// mode       time-out
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

constexpr int kTimed = 1 << 16;
constexpr unsigned long long kWork = 6000;

__device__ unsigned calls;
__device__ bool leave_out;

__device__ unsigned long long now() {
  unsigned long long value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

// of this size alone: after five calls of others in the same process the one that is judged would be the sixth
__global__ void look(int n) { leave_out = n == kTimed && ++calls % 2 == 0; }

__global__ void twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  if (leave_out) return;
  for (unsigned long long began = now(); now() - began < kWork;) {
  }
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = 2.0f * x[i];
}

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  const int n = static_cast<int>(x.numel());
  cudaStream_t stream = opforge::current_stream(x);
  OPFORGE_LAUNCH(look, 1, 1, 0, stream, n);
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, stream, opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
