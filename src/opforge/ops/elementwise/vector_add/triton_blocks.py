"""One block of consecutive elements per program.

moves     3 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE, block_of, load_once, store_once

LAYOUTS = ("contiguous", "strided")
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def vector_add_block(x_ptr, y_ptr, z_ptr, n, x_stride, y_stride, z_stride, BLOCK: tl.constexpr):
    i, inside = block_of(n, BLOCK)
    x = load_once(x_ptr + i * x_stride, inside)  # [BLOCK], float32
    y = load_once(y_ptr + i * y_stride, inside)  # [BLOCK], float32
    z = x + y
    store_once(z_ptr + i * z_stride, z, inside)


def launch(x, y, z, *, BLOCK, num_warps):
    n = x.numel()
    vector_add_block[(triton.cdiv(n, BLOCK),)](
        x, y, z, n, x.stride(0), y.stride(0), z.stride(0), BLOCK=BLOCK, num_warps=num_warps
    )
