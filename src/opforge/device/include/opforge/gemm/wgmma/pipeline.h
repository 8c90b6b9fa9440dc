// opforge/gemm/wgmma/pipeline.h - the pipeline of stages in shared memory, and the place in it.
#ifndef OPFORGE_GEMM_WGMMA_PIPELINE_H_
#define OPFORGE_GEMM_WGMMA_PIPELINE_H_

#include "opforge/gemm/wgmma/shape.h"

namespace opforge {
namespace wgmma {

// The pipeline of stages in shared memory and the place in it.
template <typename S>
struct Pipeline {
  unsigned char* tiles;
  Barrier *full, *empty;
  Barrier* read;  // a slot's floats have been read, by every warp
  float* floats;
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == S::kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

}  // namespace wgmma
}  // namespace opforge

#endif  // OPFORGE_GEMM_WGMMA_PIPELINE_H_
