"""PyTorch's layer norm and its gradient, in float32 on a CPU: the statistics that the gradient takes come from a
forward pass.
"""

import torch
from torch import Tensor


def run(x: Tensor, weight: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    stored = x.dtype
    if x.device.type == "cpu":
        # there PyTorch keeps mean and scale in x's own dtype: with 16 bits the gradient would be wrong in the third
        # digit
        x, weight, dy = x.float(), weight.float(), dy.float()
    shape = [x.shape[-1]]
    _, mean, scale = torch.ops.aten.native_layer_norm(x, shape, weight, weight, eps)
    dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dy, x, shape, mean, scale, weight, weight, [True, True, True]
    )
    return dx.to(stored), dweight.to(stored), dbias.to(stored)
