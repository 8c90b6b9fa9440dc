// Few rows: b streams from memory through a pipeline of TMA boxes into QGMMA, k split among the blocks of a cluster, parts added through its shared memory.
//
// moves     b once; a once for each block of columns, from the second-level cache
// idea      ../matmul/cuda_stream with 128 terms a step, after which the sums move to float32 registers. The scales of a step's blocks come through
//           the pipeline beside the operands, by cp.async; those of rows and tensors meet the final sums
// code      opforge/gemm/stream.h
// best      few rows, which it is for: b is read once, by all multiprocessors
// limits    m <= 128, both operands in E4M3, no float16 result; sm_90a. What the TMA cannot address is right and slow
/* opforge
arch = "sm_90a"
layouts = ["contiguous", "rows", "strided"]

[supports]
few_rows = "m <= 128"
rows_of_whole_16_bytes = "k % 16 == 0"
both_in_e4m3 = "dtype == 'float8_e4m3fn' and b_dtype == 'float8_e4m3fn'"
a_result_not_in_float16 = "out_dtype != 'float16'"

[best]
few_rows = "m <= 128"

[space]
COLUMNS = [64, 128]
RING = [64, 100, 200]
PARTS = [0, 1, 2, 4, 8]
SHARE = [1, 2, 4]
OVERLAP = [0, 1]

[default]
COLUMNS = 128
RING = 200
PARTS = 0
SHARE = 1
OVERLAP = 1

[limits]
every_part_has_a_step = "PARTS * 128 <= k or PARTS == 0"
a_cluster_has_8_blocks = "PARTS * SHARE <= 8"
many_rows_are_shared = "SHARE <= 1 or m > 32"
*/
#include "opforge/gemm/fp8_scales.h"
#include "opforge/gemm/stream.h"

// Tunable: columns of y in a block, KB of the pipeline, parts of k (0: as many as suit), blocks that share a, whether blocks may start while the kernel before runs.
#ifndef COLUMNS
#define COLUMNS 128
#endif
#ifndef RING
#define RING 200
#endif
#ifndef PARTS
#define PARTS 0
#endif
#ifndef SHARE
#define SHARE 1
#endif
#ifndef OVERLAP
#define OVERLAP 1
#endif

namespace {

namespace stream = opforge::stream;
using opforge::Scales;

// Scales of rows or tensors: 128 terms' sums move over as they are, and are scaled before the store.
struct Moved {
  static constexpr bool kEachStep = true, kScaled = false;
  Scales a, b;
  // what `scale` will want at the very end
  __device__ __forceinline__ void warm(int row, int col) const {
    opforge::hopper::prefetch(a.where(row, 0));
    opforge::hopper::prefetch(b.where(col, 0));
  }
  __device__ __forceinline__ float scale(int row, int col) const { return a.at(row, 0) * b.at(col, 0); }
  __device__ __forceinline__ float weight(int, int, int) const { return 1.0f; }
};

// Scales of blocks: 128 terms' sums are multiplied on the way.
struct Scaled {
  static constexpr bool kEachStep = true, kScaled = true;
  Scales a, b;
  __device__ __forceinline__ void warm(int, int) const {}
  __device__ __forceinline__ const float* of_row(int row, int step) const { return a.where(row, step); }
  __device__ __forceinline__ const float* of_column(int col, int step) const { return b.where(col / opforge::kScaleBlock, step); }
  __device__ __forceinline__ float scale(int, int) const { return 1.0f; }
  __device__ __forceinline__ float weight(int row, int col, int term) const {
    return a.at(row, term / opforge::kScaleBlock) * b.at(col / opforge::kScaleBlock, term / opforge::kScaleBlock);
  }
};

template <bool scaled>
struct Sizes {
  using Element = opforge::float8_e4m3_t;
  template <int rows, typename Visit>
  static void choose(int64_t, const Visit& visit) {
    visit(stream::Chosen<stream::Shape<Element, COLUMNS, rows, scaled, OVERLAP>>());
  }
};

constexpr stream::Wanted kWanted{PARTS, SHARE, RING};

template <typename TOut>
void product_of(const opforge::Fp8Product& call, cudaStream_t where) {
  const opforge::Matrix b = call.b.transposed();
  if (call.blockwise) {
    stream::launch_product<Sizes<true>, TOut>(call.a, b, call.y, kWanted, where, Scaled{call.scale_a, call.scale_b});
  } else {
    stream::launch_product<Sizes<false>, TOut>(call.a, b, call.y, kWanted, where, Moved{call.scale_a, call.scale_b});
  }
}

void matmul_fp8(opforge::TensorView a, opforge::TensorView b, opforge::TensorView scale_a, opforge::TensorView scale_b, opforge::TensorView y, int scaling,
                int, int) {
  for (const opforge::TensorView& tensor : {a, b, scale_a, scale_b, y}) OPFORGE_CHECK_DEVICE(tensor);
  const opforge::Fp8Product call = opforge::check_fp8_product(a, b, scale_a, scale_b, y, scaling);
  if (call.y.numel() == 0) return;
  OPFORGE_CHECK(opforge::holds_fp8<opforge::float8_e4m3_t>(a) && opforge::holds_fp8<opforge::float8_e4m3_t>(b), TypeError,
                "a and b must be float8_e4m3fn: other formats are for cuda_wgmma and triton_scaled");
  const cudaStream_t where = opforge::current_stream(a);
  switch (opforge::float_kind(y.dtype())) {
    case opforge::FloatKind::kBFloat16: return product_of<opforge::bfloat16_t>(call, where);
    case opforge::FloatKind::kFloat32: return product_of<float>(call, where);
    default: opforge::raise("TypeError", "y must be bfloat16 or float32 (got ", opforge::dtype_name(y.dtype()), "); use triton_gluon");
  }
}

}  // namespace

OPFORGE_EXPORT(run, matmul_fp8)
