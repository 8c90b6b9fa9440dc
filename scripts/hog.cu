// Copies through memory until it is told to stop, or a time is over: for scripts/degraded_gpu.py, which runs it in a
// green context of its own. Two blocks of 1024 threads fill a multiprocessor.
#include <cuda_runtime.h>

namespace {

int* told = nullptr;  // pinned: [0] stop, [1] blocks that are seated
float4* room = nullptr;
long long vectors = 0;
cudaStream_t used = nullptr;

__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void __launch_bounds__(1024, 2)
hog(volatile int* told, float4* room, long long vectors, unsigned long long limit_ns) {
  __shared__ int seat;
  if (threadIdx.x == 0) seat = atomicAdd_system(const_cast<int*>(told) + 1, 1);
  __syncthreads();
  const unsigned long long began = now_ns();
  const long long half = vectors / 2;
  long long place = (long long)(seat) * 131 * 8192 % half;
  for (;;) {
    // four loads under way before the first store: of aliases the compiler would not dare to
    for (int step = 0; step < 8; step += 4) {
      float4 kept[4];
      long long at[4];
      for (int i = 0; i < 4; ++i) {
        at[i] = (place + (step + i) * 1024 + threadIdx.x) % half;
        kept[i] = room[at[i]];
      }
      for (int i = 0; i < 4; ++i) room[half + at[i]] = kept[i];
    }
    place = (place + 8192LL * gridDim.x) % half;
    const bool over = threadIdx.x == 0 && (told[0] != 0 || now_ns() - began > limit_ns);
    if (__syncthreads_or(over)) return;
  }
}

}  // namespace

extern "C" {

// Make everything that may wait for the device: before any block sits. 0, or CUDA's number of the error.
int prepare(long long bytes) {
  void** pinned = reinterpret_cast<void**>(&told);
  if (cudaHostAlloc(pinned, 2 * sizeof(int), cudaHostAllocMapped)) return int(cudaGetLastError());
  void** memory = reinterpret_cast<void**>(&room);
  if (cudaMalloc(memory, size_t(bytes))) return int(cudaGetLastError());
  vectors = bytes / 16;
  told[0] = 1;
  told[1] = 0;
  hog<<<1, 1024>>>(told, room, vectors, 0);  // loads the code
  return int(cudaDeviceSynchronize());
}

int start(void* stream, int blocks, double limit_s) {
  told[0] = told[1] = 0;
  used = static_cast<cudaStream_t>(stream);
  hog<<<blocks, 1024, 0, used>>>(told, room, vectors, (unsigned long long)(limit_s * 1e9));
  return int(cudaGetLastError());
}

int seated() { return static_cast<volatile int*>(told)[1]; }

int stop() {
  static_cast<volatile int*>(told)[0] = 1;
  return int(cudaStreamSynchronize(used));
}

}
