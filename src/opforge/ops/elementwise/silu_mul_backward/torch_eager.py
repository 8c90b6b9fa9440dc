"""What PyTorch's autograd runs for silu(gate) * up: three calls, with silu(gate) left by the forward pass."""

import torch
from torch import Tensor
from torch.nn.functional import silu

INACCURATE = (
    "in float16 dy * up may be beyond the range, or 0, where the slope of silu brings it back: infinity times 0 is NaN"
)


def keep(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor]:
    return (silu(gate),)


def run(gate: Tensor, up: Tensor, dy: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten.silu_backward(dy * up, gate), dy * activated
