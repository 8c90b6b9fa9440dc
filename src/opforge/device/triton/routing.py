"""Scores of experts in Triton: whole rows of logits in registers, some to a program."""

from typing import Any

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"a_row_fits": "experts <= 4096"}
SPACE = {"TILE": (256, 512, 1024, 2048), "num_warps": (1, 2, 4, 8)}
LIMITS = {"fits_registers": "max(TILE, next_pow2(experts)) <= 32 * 32 * num_warps"}
DEFAULT = {"TILE": 1024, "num_warps": 4}


def rows_of(rows: int, experts: int, tile: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid and the sizes of programs of about `tile` logits."""
    block = triton.next_power_of_2(experts)
    several = max(1, min(tile // block, triton.next_power_of_2(rows)))
    return (triton.cdiv(rows, several),), {"ROWS": several, "BLOCK": block}


@triton.jit
def load_logits(logits_ptr, row, rows, experts, stride, BLOCK: tl.constexpr):
    """Rows of logits as float32, -inf where there is no expert; and which elements there are."""
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < experts)
    return tl.load(logits_ptr + row * stride + col, mask=inside, other=-float("inf")).to(tl.float32), col, inside


@triton.jit
def softmax_scale(x):
    """The largest of each row, and 1 / the sum of exp(x - largest); [ROWS, 1]."""
    top = tl.max(x, axis=1, keep_dims=True)
    return top, 1.0 / tl.sum(tl.exp(x - top), axis=1, keep_dims=True)


@triton.jit
def sizes_of(x, top, SIGMOID: tl.constexpr, NORMALISE: tl.constexpr):
    """What weights are in proportion to. Sigmoids that are normalised are in units of exp(top), top at most 0, so that
    small ones do not vanish.
    """
    if SIGMOID:
        below = tl.minimum(x, 0.0)
        if NORMALISE:
            below = below - tl.minimum(top, 0.0)
        size = tl.exp(below) / (1.0 + tl.exp(-tl.abs(x)))
    else:
        size = tl.exp(x - top)
    return size


def flags_of(score: str, normalise: bool) -> dict[str, Any]:
    """What kernels are compiled for."""
    return {"SIGMOID": score == "sigmoid", "NORMALISE": bool(normalise)}
