// What TileLang's AscendC takes from CANN, as far as a kernel of SIMT threads without barriers needs it: its arithmetic is run on a CPU,
// thread after thread. Tests alone use this; it says nothing of an NPU.
#pragma once

#include <cmath>
#include <cstdint>

#define __gm__
#define __simt_vf__
#define __global__
#define __vector__
#define __launch_bounds__(threads)

using half = _Float16;

struct Index {
  int x;
};
extern Index threadIdx;
extern "C" int block_idx;

namespace cce {
struct dim3 {
  int x;
};
}  // namespace cce

namespace tl::limits {
constexpr float kFloatInf = INFINITY, kFloatNInf = -INFINITY, kFloatNaN = NAN;
}  // namespace tl::limits

inline void asc_init() {}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

template <auto kernel, class... Arguments>
void asc_vf_call(cce::dim3 threads, Arguments... arguments) {
  for (threadIdx.x = 0; threadIdx.x < threads.x; ++threadIdx.x) kernel(arguments...);
}
