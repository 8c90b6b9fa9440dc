// opforge/arch/scratch.h - memory that one launch needs and nobody sees.
#ifndef OPFORGE_SCRATCH_H_
#define OPFORGE_SCRATCH_H_

#include <map>
#include <memory>
#include <mutex>

#include "opforge/device.h"

namespace opforge {

/// Device memory for the kernels that are given to `stream` while this object lives; it may be captured in a CUDA graph.
class Scratch {
 public:
  Scratch(int64_t bytes, cudaStream_t stream) : stream_(stream) {
    if (bytes == 0) return;
#ifdef OPFORGE_EMULATE
    memory_.reset(new unsigned char[bytes]);
    data_ = memory_.get();
#else
    check_cuda(cudaMallocFromPoolAsync(&data_, bytes, pool(), stream), "cudaMallocFromPoolAsync");
#endif
  }
  ~Scratch() {
#ifndef OPFORGE_EMULATE
    // in the order of the stream: what was launched before still finds it
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
#endif
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
#ifdef OPFORGE_EMULATE
  std::unique_ptr<unsigned char[]> memory_;
#else
  // A pool of our own for each device, which keeps its memory: the default one returns it at every synchronisation.
  static cudaMemPool_t pool() {
    static std::mutex mutex;
    static std::map<int, cudaMemPool_t> pools;
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    const std::lock_guard<std::mutex> lock(mutex);
    cudaMemPool_t& found = pools[device];
    if (found == nullptr) {
      cudaMemPoolProps properties{};
      properties.allocType = cudaMemAllocationTypePinned;
      properties.location.type = cudaMemLocationTypeDevice;
      properties.location.id = device;
      check_cuda(cudaMemPoolCreate(&found, &properties), "cudaMemPoolCreate");
      uint64_t keep = ~uint64_t(0);
      check_cuda(cudaMemPoolSetAttribute(found, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolAttrReleaseThreshold");
    }
    return found;
  }
#endif
  void* data_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace opforge

#endif  // OPFORGE_SCRATCH_H_
