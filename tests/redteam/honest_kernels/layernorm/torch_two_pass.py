"""Two passes, fused multiply and add."""

import torch


def run(x, weight, bias, eps):
    wide = x.float()
    centred = wide - wide.mean(dim=-1, keepdim=True)
    return torch.addcmul(
        bias.float(), centred * torch.rsqrt((centred * centred).mean(dim=-1, keepdim=True) + eps), weight.float()
    ).to(x.dtype)
