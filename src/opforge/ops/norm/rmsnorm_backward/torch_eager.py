"""What PyTorch's autograd runs for rms_norm: on a GPU one function, with the scale that the forward pass left; on a CPU
a dozen, one for each step of it.
"""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

INACCURATE = (
    "on a CPU, and for rows of a length that PyTorch has no kernel for, each step of the forward pass has "
    "its own gradient, rounded in between"
)


def keep(x: Tensor, weight: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, ...]:
    shape = [x.shape[-1]]
    if x.is_cuda or torch.compiler.is_compiling():
        return (torch.ops.aten._fused_rms_norm(x, shape, weight, eps)[1],)
    leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
    with torch.enable_grad():
        return (rms_norm(leaves[0], shape, leaves[1], eps), *leaves)


def run(x: Tensor, weight: Tensor, dy: Tensor, *kept: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if x.is_cuda or torch.compiler.is_compiling():
        gradients: tuple[Tensor, Tensor] = torch.ops.aten._fused_rms_norm_backward(
            dy, x, [x.shape[-1]], kept[0], weight, [True, True]
        )
        return gradients
    y, *leaves = kept
    dx, dweight = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    return dx, dweight
