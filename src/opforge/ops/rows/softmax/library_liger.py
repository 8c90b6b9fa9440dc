"""Liger Kernel's softmax: a row in one Triton program, up to 65536 columns."""

from liger_kernel.ops.softmax import LigerSoftmaxFunction
from torch import Tensor

NEEDS = "liger-kernel==0.8.5"
SUPPORTS = {"its widest block": "cols <= 65536"}


def run(x: Tensor) -> Tensor:
    return LigerSoftmaxFunction.apply(x)
