"""Whole rows in Triton, in registers, several to a program when they are narrow: what kernels that keep them have in
common.

SPACE is that of softmax and its kin: `tile`, the elements of a program that holds several rows, and `per_thread`, those
of a thread: registers against loads in flight; 0: 16, and 32 from 8192 columns on.
"""

from typing import Any

import triton
import triton.language as tl

SPACE = {"tile": (1024, 2048, 4096), "per_thread": (0, 8, 16, 32)}


@triton.jit
def tile_of_rows(rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """This program's rows ([ROWS, 1]), their columns ([1, BLOCK]), and which elements ([ROWS, BLOCK]) exist."""
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    return row, col, (row < rows) & (col < cols)


def whole_rows(rows: int, cols: int, tile: int, per_thread: int) -> tuple[tuple[int], dict[str, Any]]:
    """Grid and config of programs that hold whole rows: about `tile` elements a program, `per_thread` a thread."""
    block = triton.next_power_of_2(cols)
    several = max(1, min(tile // block, triton.next_power_of_2(rows)))
    per_thread = per_thread or (16 if block < 8192 else 32)
    return (triton.cdiv(rows, several),), {
        "ROWS": several,
        "BLOCK": block,
        "num_warps": max(1, min(32, block * several // (32 * per_thread))),
    }
