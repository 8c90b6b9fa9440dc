// opforge/gemm/mma_tunables.h - what a file that multiplies by gemm/mma.h is tuned by.
#ifndef OPFORGE_GEMM_MMA_TUNABLES_H_
#define OPFORGE_GEMM_MMA_TUNABLES_H_

// Tunable: the tile of c, the terms per step, steps under way at once, rows of tiles that are computed together.
#ifndef BLOCK_M
#define BLOCK_M 128
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef BLOCK_K
#define BLOCK_K 32
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef GROUP
#define GROUP 8
#endif

#endif  // OPFORGE_GEMM_MMA_TUNABLES_H_
