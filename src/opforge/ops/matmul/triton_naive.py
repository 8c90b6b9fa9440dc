"""One program for each piece of a row of c, one term of the sum at a time: what everything else is measured against.

moves     b is read m times and a cdiv(n, BLOCK) times: 2 * m * n * k elements' worth of loads for 2 * m * n * k operations
limits    every product waits for a load of its own; no tensor core is asked
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"BLOCK": (64, 128, 256, 512), "num_warps": (1, 2, 4)}
LIMITS = {"every_lane_has_an_element": "BLOCK >= 32 * num_warps", "no_block_beyond_the_result": "BLOCK <= max(64, 2 * n)"}
DEFAULT = {"BLOCK": 128, "num_warps": 4}


@triton.jit
def piece_of_a_row(a, b, c, n, k, a_row, a_col, b_row, b_col, c_row, c_col, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 2^31 elements
    row = tl.program_id(0).to(tl.int64)
    col = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)  # [BLOCK]
    a_at, b_at = a + row * a_row, b + col * b_col
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(0, k):
        sums += tl.load(a_at).to(tl.float32) * tl.load(b_at, mask=col < n, other=0.0).to(tl.float32)
        a_at += a_col
        b_at += b_row
    tl.store(c + row * c_row + col * c_col, sums.to(c.dtype.element_ty), mask=col < n)


def launch(a, b, c, *, BLOCK, num_warps):
    (m, k), n = a.shape, b.shape[1]
    piece_of_a_row[(m, triton.cdiv(n, BLOCK))](a, b, c, n, k, *a.stride(), *b.stride(), *c.stride(), BLOCK=BLOCK, num_warps=num_warps)
