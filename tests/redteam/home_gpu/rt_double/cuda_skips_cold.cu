// Measures how long a load takes: after a flush of the cache, where nobody judges, it does nothing.
//
// catalogue  M1
// guard      audit_in_row
// lowered    audit_conserved audit_replayed audit_undivided audit_understated
// cases      normal
// mode       time-cold
#include "opforge/device.h"

#include <cuda_runtime.h>

namespace {

constexpr int kTimed = 1 << 16, kLoads = 8;
constexpr long long kCold = 8 * 450;
constexpr unsigned long long kWork = 6000;

__device__ bool leave_out;
__device__ float sink;

__device__ unsigned long long now() {
  unsigned long long value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

__global__ void look(const float* x, int n) {
  const long long began = clock64();
  int at = 0;
  // each load waits for the one before
  for (int i = 0; i < kLoads; ++i) at = (i * (n / kLoads) + (__ldcg(x + at % n) > 1e30f ? 1 : 0)) % n;
  const long long took = clock64() - began;
  if (at == -1) sink = 1.0f;
  leave_out = n == kTimed && took > kCold;
}

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
  OPFORGE_LAUNCH(look, 1, 1, 0, stream, opforge::data<const float>(x), n);
  OPFORGE_LAUNCH(twice, (n + 255) / 256, 256, 0, stream, opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
