"""Returns a strided view."""

import torch


def run(x):
    buffer = torch.empty(x.numel() * 2, dtype=x.dtype)
    view = (
        buffer[::2].view(x.shape)
        if x.numel() == 0
        else buffer.as_strided(x.shape, [2 * step for step in torch.empty(x.shape).stride()])
    )
    view.copy_(x.clamp(min=0))
    return view
