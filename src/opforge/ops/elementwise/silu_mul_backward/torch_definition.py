"""What PyTorch's autograd runs for silu(gate) * up, by way of float32 where float16 is not enough; silu(gate) is made
again.
"""

import torch
from torch import Tensor
from torch.nn import functional


def run(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    if dy.dtype == torch.float16:
        # dy * up may be beyond float16 where the slope of silu brings it back, or to 0: infinity times 0 would be NaN
        return torch.ops.aten.silu_backward(dy.float() * up.float(), gate.float()).half(), dy * functional.silu(gate)
    return torch.ops.aten.silu_backward(dy * up, gate), dy * functional.silu(gate)
