"""Liger Kernel's layer norm: a row in one Triton program; it keeps mean and 1 / deviation for the gradient."""

from liger_kernel.ops.layer_norm import LigerLayerNormFunction
from torch import Tensor

NEEDS = "liger-kernel==0.8.5"
SUPPORTS = {"its widest block": "cols <= 65536"}


def run(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return LigerLayerNormFunction.apply(x, weight, bias, eps)
