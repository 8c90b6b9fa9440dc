"""Liger Kernel's SwiGLU: a row of the last axis in one Triton program."""

from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from torch import Tensor

NEEDS = "liger-kernel==0.8.5"
SUPPORTS = {"it has a last axis": "len(shape) > 0", "its widest block": "last(shape) <= 65536"}


def run(gate: Tensor, up: Tensor) -> Tensor:
    return LigerSiLUMulFunction.apply(gate, up)
