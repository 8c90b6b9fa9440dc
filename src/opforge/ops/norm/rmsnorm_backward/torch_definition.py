"""The gradient of RMS normalisation as it is defined, in PyTorch's operations in float32."""

from torch import Tensor


def run(x: Tensor, weight: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide, gradient = x.float(), dy.float()
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    h = wide * scale
    g = gradient * weight.float()
    dx = (g - h * (g * h).mean(dim=-1, keepdim=True)) * scale
    dweight = (gradient * h).reshape(-1, x.shape[-1]).sum(dim=0)
    return dx.to(x.dtype), dweight.to(weight.dtype)
