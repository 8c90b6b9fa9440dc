"""One block of consecutive elements per program; a thread makes the random words of its own elements, four from each
block of the generator.

moves     2 * elements * itemsize bytes: the least possible, no mask is stored
limits    20 wide products for 4 elements: with 16-bit elements arithmetic and memory take about the same time
"""

import triton
import triton.language as tl

from opforge.core.philox import threshold
from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE

SUPPORTS = {"some_stay": "p < 1"}
LAYOUTS = ("contiguous",)
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def words_of(seed, start, BLOCK: tl.constexpr):
    """The words of BLOCK elements from `start` on, a multiple of four."""
    block = start // 4 + tl.arange(0, BLOCK // 4)  # int64
    low = (block & 0xFFFFFFFF).to(tl.uint32)
    high = (block >> 32).to(tl.uint32)
    zero = low * 0
    a, b, c, d = tl.philox(seed, low, high, zero, zero)
    # [BLOCK / 4, 2, 2], the last axis fastest: a, b, c, d
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK])


# no variant of its own for a seed that 16 divides
@triton.jit(do_not_specialize=["seed", "least"])
def drop_block(x_ptr, y_ptr, n, seed, least, scale, BLOCK: tl.constexpr):
    # int64: there may be more than 2^31 elements
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside).to(tl.float32)  # [BLOCK]
    keep = words_of(seed, start, BLOCK) >= least.to(tl.uint32)
    tl.store(y_ptr + i, tl.where(keep, x * scale, 0.0).to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, y, *, p, seed, BLOCK, num_warps):
    n = x.numel()
    drop_block[(triton.cdiv(n, BLOCK),)](x, y, n, seed, threshold(p), 1 / (1 - p), BLOCK=BLOCK, num_warps=num_warps)
