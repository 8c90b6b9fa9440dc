"""Liger Kernel's cross-entropy without its gradient: one row in one Triton program, read online; it asks the host twice which targets count."""

from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from torch import Tensor

NEEDS = "liger-kernel==0.8.5"
SUPPORTS = {"it asks for the largest target": "prod(lead) > 0"}


def run(x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    loss = LigerCrossEntropyFunction.apply(x.reshape(-1, x.shape[-1]), target.reshape(-1), None, ignore_index, 0.0, label_smoothing, "none")[0]
    return loss.reshape(target.shape)
