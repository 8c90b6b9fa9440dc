// Rows wait in shared memory, several ahead; dweight and dbias grow in registers.
//
// moves     3 * rows * cols * itemsize bytes: the least possible; a row of partial sums for each block, mostly in L2; see opforge/norm/backward_ring.h
// limits    12288 columns of 16 bits, 6144 of 32: the column sums of a row in the registers of a block; whole 16-byte vectors. Where rows
//           begin off that grid they wait in registers, as in cuda_persistent. sm_80 or later
// best      rows whose vectors (one, two or four a thread, by width) fill whole warps: arithmetic is what limits, and an empty lane's is lost
/* opforge
like = "opforge/norm/backward_ring.h"
[supports]
whole_16_byte_vectors = "cols % 8 == 0 or dtype == 'float32' and cols % 4 == 0"
fits_a_block = "cols <= 6144 or dtype != 'float32' and cols <= 12288"
[best]
lanes_are_full = "cols * itemsize % (512 if cols * itemsize <= 512 else 1024 if cols * itemsize <= (1024 if itemsize == 2 else 16384) else 2048) == 0"
[limits]
all_by_width_or_none = "(VECS == 0) == (STAGES == 0) and (VECS == 0) == (THREADS == 0)"
rows_of_the_shape_class_fit = "VECS == 0 or min(next_pow2(cols) * itemsize, 24576) <= 16 * VECS * THREADS"
half_a_warp_has_work = "VECS == 0 or cols * itemsize >= 256 * VECS"
ring_fits_shared_memory = "16 * VECS * THREADS * (2 * STAGES + 1) <= shared_bytes_per_block - 3072"
sums_fit_the_registers = "VECS * THREADS <= 1536"
*/
#include "opforge/norm/backward_ring.h"

namespace {

void layernorm_backward(opforge::TensorView x, opforge::TensorView weight, opforge::TensorView dy, opforge::TensorView dx, opforge::TensorView dweight,
                        opforge::TensorView dbias, double eps) {
  opforge::norm_gradient(x, weight, dy, dx, dweight, &dbias, eps,
                         [](const auto& call, cudaStream_t stream) { opforge::launch_norm_gradient_ring<true, VECS, STAGES, THREADS>(call, stream); });
}

}  // namespace

OPFORGE_EXPORT(run, layernorm_backward)
