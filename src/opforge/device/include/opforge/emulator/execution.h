// opforge/emulator/execution.h - runs simple CUDA kernels on the CPU, for checking results.
//
// A .cu file that includes opforge/device.h compiles with
//   g++ -x c++ -DOPFORGE_EMULATE ...
// and its kernels then run block by block, every CUDA thread as a fiber with its
// own small stack.  Fibers switch only at barriers and warp operations, so a run is
// deterministic; OPFORGE_EMU_SCHEDULE=forward|reverse|<seed> in the environment
// changes the order of threads, which brings missing barriers to light.
//
// Reported as errors (a Python RuntimeError) instead of hanging or passing unseen:
//   - barriers that some threads of the block do not reach, or reach elsewhere,
//   - warp operations that lanes named in the mask do not join,
//   - launch configurations that the hardware refuses,
//   - writes past the end of dynamic shared memory, misaligned Vec accesses.
// Shared memory is filled with NaN bytes before each block.
//
// The blocks of a cluster take turns on one host thread, switching at the cluster's barrier; a
// store into another block's shared memory goes through store_in_block (opforge/arch/groups.h). They also take
// turns when all threads of one wait at barriers in shared memory (opforge/arch/shared_barriers.h).
//
// Not covered: cluster barriers that are not waited for at once, wgmma, mma, TMA's tensor maps, inline PTX,
// textures, cooperative grid barriers, dynamic parallelism.  Nothing here says
// anything about speed on a GPU.
//
// Dynamic shared memory is declared with OPFORGE_DYNAMIC_SHARED(type, name), or
// with `extern __shared__ type name[];` if the build step rewrites that line first.
#ifndef OPFORGE_CUDA_EMULATOR_H_
#define OPFORGE_CUDA_EMULATOR_H_

#if defined(__CUDACC__)
#error "opforge/cuda_emulator.h is for host compilers only; nvcc needs no emulation"
#endif

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// OPFORGE_EMU_UCONTEXT selects the portable context switch (10 times slower).
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(OPFORGE_EMU_UCONTEXT)
#define OPFORGE_EMU_UCONTEXT 1
#endif
#ifdef OPFORGE_EMU_UCONTEXT
#include <ucontext.h>
#endif

#include "opforge/numeric/half.h"

#include "opforge/emulator/language.h"

namespace opforge {
namespace emu {
#include "opforge/emulator/fibers.h"
#include "opforge/emulator/grid.h"
}  // namespace emu
}  // namespace opforge

#include "opforge/emulator/intrinsics.h"

#endif  // OPFORGE_CUDA_EMULATOR_H_
