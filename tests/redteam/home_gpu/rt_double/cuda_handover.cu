// One warp of a block copies into shared memory, another waits at an mbarrier and reads: right, and wrong by luck alone, as HANDOVER says.
//
//   0   every lane arrives after its own elements
//   1   __syncwarp, then one lane arrives for all: right too (a barrier of a warp orders what its lanes wrote before what they do after, and the order of
//       the memory model goes on from there), and more than racecheck follows
//   2   one lane arrives for all and waits for none: a race
//   3   every lane arrives, and the barrier is made while others may use it already: a race
//   4   as 0, and the thread that makes a barrier of its own arrives there at once: right, and racecheck takes the making for a write of every lane
//   5   as 4, with __syncwarp in between
//   6   the reader waits at a barrier of the block, the writer meets itself at another one, writes, and comes: right (this is how Triton's warp
//       specialisation tells its warps what to run)
//   7   as 6, but the writer writes after it came: a race
/* opforge
[space]
HANDOVER = [0, 1, 2, 3, 4, 5, 6, 7]
[default]
HANDOVER = 0
*/
#include <cuda_runtime.h>

#include "opforge/device.h"
#include "opforge/arch/shared_barriers.h"

namespace {

constexpr int kElements = 256;

// Meets `threads` threads of the block at barrier `number`.
__device__ __forceinline__ void meet(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

__global__ void __launch_bounds__(64) twice(const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ opforge::SharedBarrier full, own;
  __shared__ float waiting[kElements];
  const int lane = threadIdx.x % 32, begin = blockIdx.x * kElements;
  if (threadIdx.x == 0) {
    opforge::init_shared_barrier(&full, HANDOVER == 1 || HANDOVER == 2 ? 1 : 32);
    opforge::publish_shared_barriers();
  }
  if (HANDOVER != 3) __syncthreads();
  if (HANDOVER >= 4) {
    if (threadIdx.x == 0) {
      opforge::init_shared_barrier(&own, 1);
      opforge::publish_shared_barriers();
      if (HANDOVER == 4) opforge::arrive_shared(&own);
    }
    __syncwarp();
    if (HANDOVER == 5 && threadIdx.x == 0) opforge::arrive_shared(&own);
    __syncthreads();
  }
  if (HANDOVER >= 6) {
    if (threadIdx.x < 32) {
      for (int i = 0; i < 4; ++i) meet(2, 32);
      if (HANDOVER == 7) meet(1, 64);
      for (int i = lane; i < kElements; i += 32) waiting[i] = begin + i < n ? x[begin + i] : 0.0f;
      if (HANDOVER != 7) meet(1, 64);
    } else {
      meet(1, 64);
      for (int i = 31 - lane; i < kElements; i += 32) {
        if (begin + i < n) y[begin + i] = 2.0f * waiting[i];
      }
    }
    return;
  }
  if (threadIdx.x < 32) {
    for (int i = lane; i < kElements; i += 32) waiting[i] = begin + i < n ? x[begin + i] : 0.0f;
    if (HANDOVER == 1) __syncwarp();
    if ((HANDOVER != 1 && HANDOVER != 2) || lane == 0) opforge::arrive_shared(&full);
  } else {
    if (HANDOVER == 3) {
      // by then the barrier is there, which nothing orders: a wait at one that is made afterwards might never end
      for (const long long start = clock64(); clock64() - start < 1 << 20;) {
      }
    }
    opforge::wait_shared(&full, 0);
    for (int i = 31 - lane; i < kElements; i += 32) {
      if (begin + i < n) y[begin + i] = 2.0f * waiting[i];
    }
  }
}

void run_twice(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_CHECK_CONTIGUOUS(x);
  OPFORGE_CHECK_DEVICE(x);
  const int n = static_cast<int>(x.numel());
  OPFORGE_LAUNCH(twice, (n + kElements - 1) / kElements, 64, 0, opforge::current_stream(x), opforge::data<const float>(x), opforge::data<float>(y), n);
}

}  // namespace

OPFORGE_EXPORT(run, run_twice)
