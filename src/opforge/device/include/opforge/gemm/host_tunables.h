// opforge/gemm/host_tunables.h - what a file that multiplies by gemm/host.h is tuned by.
#ifndef OPFORGE_GEMM_HOST_TUNABLES_H_
#define OPFORGE_GEMM_HOST_TUNABLES_H_

#include "opforge/gemm/host.h"

// Tunable: terms per panel, register tiles in a block of rows, columns in a strip; and whose registers: 1 those that every
// CPU of the kind has, 2 AVX2, 3 AVX-512, 0 the widest of the CPU that runs it.
#ifndef DEPTH
#define DEPTH 384
#endif
#ifndef BLOCK
#define BLOCK 24
#endif
#ifndef STRIP
#define STRIP 2048
#endif
#ifndef ISA
#define ISA 0
#endif

namespace opforge {
namespace gemm {

using Tuned = Blocking<DEPTH, BLOCK, STRIP, ISA>;

}  // namespace gemm
}  // namespace opforge

#endif  // OPFORGE_GEMM_HOST_TUNABLES_H_
