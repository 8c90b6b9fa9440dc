"""One block of consecutive elements per program, in float32.

moves     2 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE, block_of, load_once, store_once

LAYOUTS = ("contiguous", "strided")
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def silu_block(x_ptr, y_ptr, n, x_stride, y_stride, BLOCK: tl.constexpr):
    i, inside = block_of(n, BLOCK)
    x = load_once(x_ptr + i * x_stride, inside)  # [BLOCK], float32
    y = x / (1 + tl.exp2(x * -1.4426950408889634))
    store_once(y_ptr + i * y_stride, y, inside)


def launch(x, y, *, BLOCK, num_warps):
    n = x.numel()
    silu_block[(triton.cdiv(n, BLOCK),)](x, y, n, x.stride(0), y.stride(0), BLOCK=BLOCK, num_warps=num_warps)
