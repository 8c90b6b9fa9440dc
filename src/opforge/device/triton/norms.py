"""Rows normalised in Triton: whole ones in registers, several to a program when they are narrow; wider ones a block of
columns at a time.

Statistics of a row in blocks stay spread over the lanes until the end: fewer reductions, and smaller rounding errors.
"""

from typing import Any

import triton
import triton.language as tl

WIDEST = 16384
"""Columns of a row that stays in registers: 32 of each thread of 16 warps."""
TILE = 2048
"""Elements of a program that takes several rows: 16 registers in each of 4 warps."""
BLOCK = 4096
"""Columns read at a time from a wider row."""
PROGRAMS = 4
"""Programs that stay, of a multiprocessor, where rows are narrow."""


@triton.jit
def load_float(pointer, inside):
    """The elements at `pointer` as float32, 0 where not `inside`."""
    return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_float(pointer, value, inside):
    """Stores `value` in the dtype of `pointer`."""
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def centred_rows(x, inside, cols):
    """Whole rows ([ROWS, BLOCK]) less their means, 0 where not `inside`."""
    return tl.where(inside, x - tl.sum(x, axis=1, keep_dims=True) / cols, 0.0)


@triton.jit
def mean_of_row(x_row, cols, BLOCK: tl.constexpr):
    """The mean of a row that is read block by block."""
    col = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        total += load_float(x_row + start + col, start + col < cols)
    return tl.sum(total, axis=0) / cols


@triton.jit
def variance_of_row(x_row, mean, cols, BLOCK: tl.constexpr):
    """The mean of (x - mean)^2 of a row that is read block by block: a second pass, never E[x^2] - E[x]^2."""
    col = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        centred = tl.where(inside, load_float(x_row + start + col, inside) - mean, 0.0)
        squares += centred * centred
    return tl.sum(squares, axis=0) / cols


def normalised_rows(rows: int, cols: int) -> tuple[tuple[int], dict[str, Any]]:
    """Grid and config of programs that normalise whole rows of at most WIDEST columns."""
    block = triton.next_power_of_2(cols)
    several = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    return (triton.cdiv(rows, several),), {
        "ROWS": several,
        "BLOCK": block,
        "num_warps": 4 if block <= 2048 else 8 if block <= 4096 else 16,
    }


def staying_programs(rows: int, config: dict[str, Any], device: Any) -> int:
    """How many programs of `config` stay and take the rows in turn: PROGRAMS for each multiprocessor where rows are
    narrow, fewer where
    they take more warps. One at the least: without rows it writes the sums of nothing."""
    import torch

    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    return max(1, min(-(-rows // int(config["ROWS"])), processors * max(1, PROGRAMS * 4 // int(config["num_warps"]))))
