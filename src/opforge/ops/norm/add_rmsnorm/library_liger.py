"""Liger Kernel's fused addition and RMS norm: a row in one Triton program. Its "gemma" mode: the norm in float32, one
rounding at the end.
"""

from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
from torch import Tensor

NEEDS = "liger-kernel==0.8.5"
SUPPORTS = {"its widest block": "cols <= 65536"}


def run(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    y, total = LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, 0.0, "gemma", False)
    return y, total
