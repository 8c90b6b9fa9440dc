"""Two middle axes exchanged in Triton, runs of the last axis moved whole: the kernel, its launch, its space and the
limits of that.
"""

from typing import Any

import triton
import triton.language as tl

SPACE = {"BLOCK": (1024, 2048, 4096, 8192), "num_warps": (4, 8)}
LIMITS = {"fits_registers": "BLOCK <= 64 * 32 * num_warps"}


@triton.jit
def exchange_tile(x_ptr, y_ptr, first, second, width, A: tl.constexpr, B: tl.constexpr, W: tl.constexpr):
    """A rows by B columns of runs of one of many matrices of runs; a run is contiguous on both sides."""
    # one grid axis, because the others end at 65535
    a_blocks, b_blocks = tl.cdiv(first, A), tl.cdiv(second, B)
    block = tl.program_id(0)
    # int64: a place leaves int32 beyond 2^31 elements
    start = (block // (a_blocks * b_blocks)).to(tl.int64) * first * second * width
    a = ((block // b_blocks) % a_blocks * A + tl.arange(0, A))[None, :, None]
    b = (block % b_blocks * B + tl.arange(0, B))[:, None, None]
    col = tl.arange(0, W)[None, None, :]
    inside = (a < first) & (b < second) & (col < width)
    x = tl.load(x_ptr + start + (a.to(tl.int64) * second + b) * width + col, mask=inside)  # [B, A, W]
    tl.store(y_ptr + start + (b.to(tl.int64) * first + a) * width + col, x, mask=inside)


def exchange_middle(x: Any, y: Any, block: int, num_warps: int) -> None:
    """y[l, d, b, a, w] = x[l, d, a, b, w] for contiguous x, in tiles of about `block` elements."""
    lead, down, first, second, width = x.shape
    w = triton.next_power_of_2(width)
    a = max(1, min(triton.next_power_of_2(first), block // w))
    b = max(1, min(triton.next_power_of_2(second), block // (w * a)))
    grid = (lead * down * triton.cdiv(first, a) * triton.cdiv(second, b),)
    exchange_tile[grid](x, y, first, second, width, A=a, B=b, W=w, num_warps=num_warps)
