"""One block of consecutive elements per program, in the storage dtype.

moves     2 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import block_of

LAYOUTS = ("contiguous", "strided")
SPACE = {"BLOCK": (1024, 2048, 4096, 8192), "num_warps": (4, 8, 16)}
LIMITS = {
    "every_thread_has_a_vector": "BLOCK * itemsize >= 16 * 32 * num_warps",
    "fits_registers": "BLOCK <= 64 * 32 * num_warps",
}
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def relu_block(x_ptr, y_ptr, n, x_stride, y_stride, BLOCK: tl.constexpr):
    i, inside = block_of(n, BLOCK)
    x = tl.load(x_ptr + i * x_stride, mask=inside)  # [BLOCK]
    # tl.maximum(x, 0) would turn NaN into 0
    tl.store(y_ptr + i * y_stride, tl.where(x <= 0, 0.0, x).to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, y, *, BLOCK, num_warps):
    n = x.numel()
    relu_block[(triton.cdiv(n, BLOCK),)](x, y, n, x.stride(0), y.stride(0), BLOCK=BLOCK, num_warps=num_warps)
