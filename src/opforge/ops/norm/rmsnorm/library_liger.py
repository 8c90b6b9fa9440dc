"""Liger Kernel's RMS norm: a row in one Triton program. Its "gemma" mode: everything in float32, one rounding at the
end.
"""

from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from torch import Tensor

NEEDS = "liger-kernel==0.8.5"
SUPPORTS = {"its widest block": "cols <= 65536"}


def run(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "gemma")
