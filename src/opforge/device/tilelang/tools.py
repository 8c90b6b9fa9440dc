"""What a TileLang kernel file needs so that one program serves the C target and CUDA.

Measured against TileLang 0.1.15: the C target prints no bfloat16 (its bits travel as uint16), has no fragments (local
arrays stand in) and rejects T.Parallel over local buffers (serial loops stand in).
"""

from __future__ import annotations

from typing import Any

import tilelang  # noqa: F401  tvm is importable only after tilelang
import tilelang.language as T
import tvm

NEGATIVE = -1e30
"""Stands for minus infinity in masks, which TileLang's guides advise against."""


def storage(dtype: str, target: str) -> str:
    """The dtype to declare a tensor parameter with."""
    return "uint16" if target == "c" and dtype == "bfloat16" else dtype


def to_float32(value: Any, dtype: str, target: str) -> Any:
    """A stored element as a float32 expression."""
    if dtype == "float32":
        return value
    if target == "c" and dtype == "bfloat16":
        return T.reinterpret(T.shift_left(T.Cast("uint32", value), T.uint32(16)), "float32")
    return T.Cast("float32", value)


def from_float32(value: Any, dtype: str, target: str) -> Any:
    """A float32 expression as an element to store, rounded to nearest even."""
    if dtype == "float32":
        return value
    if target == "c" and dtype == "bfloat16":
        bits = T.reinterpret(value, "uint32")
        odd = T.bitwise_and(T.shift_right(bits, T.uint32(16)), T.uint32(1))
        rounded = T.shift_right(bits + T.uint32(0x7FFF) + odd, T.uint32(16))
        is_nan = T.bitwise_and(bits, T.uint32(0x7FFFFFFF)) > T.uint32(0x7F800000)
        return T.Cast("uint16", T.if_then_else(is_nan, T.uint32(0x7FC0), rounded))
    return T.Cast(dtype, value)


def tile(target: str) -> Any:
    """The allocator of accumulator tiles: fragments on a GPU, local arrays on the C target."""
    return T.alloc_local if target == "c" else T.alloc_fragment


def loop(target: str) -> Any:
    """The loop over a tile's elements: T.Parallel on a GPU, serial on the C target."""
    if target != "c":
        return T.Parallel
    return lambda *extents: T.serial(extents[0]) if len(extents) == 1 else T.grid(*extents)


def both(first: Any, second: Any) -> Any:
    """Two conditions at once (Python's `and` does not build an expression)."""
    return tvm.tirx.all(first, second)


def multiprocessors() -> int:
    """How many multiprocessors the GPU that is here has; those of an H100 or H200 where a program is lowered and no GPU
    is asked.
    """
    import torch

    return (
        int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
        if torch.cuda.is_available()
        else 132
    )
