// Hopper's own instructions: TMA fills a pipeline of tiles, two warpgroups multiply from it with wgmma, blocks stay for many tiles.
//
// moves     a is read ceil(n / (BLOCK_N * CLUSTER_N)) times from the second-level cache and b ceil(m / (128 * CLUSTER_M))
//           times: the blocks of a cluster share what they read
// code      the pipeline, the roles and the way out are in opforge/gemm/wgmma/launch.h, which ../linear has too
// limits    sm_90a; the TMA addresses rows or columns that begin at multiples of 16 bytes. Other strides and addresses are
//           right too, and slow: there the copying warpgroup moves elements itself
// source    PTX ISA: wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg; the division of labour follows the published
//           descriptions of warp-specialised kernels (Bauer et al., CudaDMA, SC 2011)
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]
dtypes = ["float16", "bfloat16"]

[supports]
rows_of_whole_16_bytes = "n % 8 == 0 and k % 8 == 0"

[space]
BLOCK_N = [64, 128, 160, 192, 224, 256]
STAGES = [3, 4, 5, 6, 7]
CLUSTER_M = [1, 2]
CLUSTER_N = [1, 2]
GROUP = [1, 2, 4, 8, 16]
OUT_BOXES = [1, 2, 4]
LEAD = [0, 1, 2, 3]
NARROW = [0, 1, 2]
OVERLAP = [0, 1]

[default]
BLOCK_N = 256
STAGES = 4
CLUSTER_M = 2
CLUSTER_N = 1
GROUP = 8
OUT_BOXES = 2
LEAD = 2
NARROW = 2
OVERLAP = 1

[limits]
lead_fits_the_pipeline = "LEAD < STAGES"
stages_fit_shared_memory = "STAGES * (128 + (BLOCK_N + 63) // 64 * 64) * 128 + 16384 * OUT_BOXES + 2048 <= shared_bytes_per_block"
*/
#ifndef NARROW
#define NARROW 2
#endif
#include "opforge/gemm/wgmma/tunables.h"

namespace {

namespace wgmma = opforge::wgmma;

template <typename T>
void product_of(const opforge::Matrix& a, const opforge::Matrix& b, const opforge::Matrix& c, cudaStream_t stream) {
  wgmma::launch_product<wgmma::Wide<T>, wgmma::Narrow<T>, T>(a, b, c, stream, opforge::gemm::Unchanged{}, wgmma::NoPromotion{});
}

void matmul(opforge::TensorView a, opforge::TensorView b, opforge::TensorView c, int64_t /*precision*/) {
  const opforge::Matrix left = OPFORGE_DEVICE_MATRIX(a), right = OPFORGE_DEVICE_MATRIX(b), out = OPFORGE_DEVICE_MATRIX(c);
  opforge::check_product(left, right, out);
  opforge::check_same_dtype(left, out);
  if (out.numel() > 0) OPFORGE_DISPATCH_16_BITS(left, T, product_of<T>(left, right, out, opforge::current_stream(a)));
}

}  // namespace

OPFORGE_EXPORT(run, matmul)
