"""A row of the result per program, in blocks of columns: picked elements go through registers as they are.

moves     an index, and a row in and out: the least possible
limits    narrow rows are short programs
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SPACE = {"BLOCK": (256, 512, 1024, 2048, 4096), "num_warps": (1, 2, 4, 8)}
LIMITS = {"fits_registers": "BLOCK <= 32 * 32 * num_warps"}
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def pick_rows(weight_ptr, indices_ptr, y_ptr, vocab, dim, weight_stride, BLOCK: tl.constexpr):
    # int64: a place leaves int32 beyond 2^31 elements
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices_ptr + row)
    # no row has such an index: nothing is read, and the result is NaN
    there = (index >= 0) & (index < vocab) & (col < dim)
    values = tl.load(weight_ptr + index * weight_stride + col, mask=there, other=float("nan"))  # [BLOCK]
    tl.store(y_ptr + row * dim + col, values, mask=col < dim)


def launch(weight, indices, y, *, padding_idx, BLOCK, num_warps):
    vocab, dim = weight.shape
    block = min(BLOCK, triton.next_power_of_2(dim))
    pick_rows[(indices.numel(), triton.cdiv(dim, block))](
        weight, indices, y, vocab, dim, weight.stride(0), BLOCK=block, num_warps=num_warps
    )
