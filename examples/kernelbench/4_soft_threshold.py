import torch
import torch.nn as nn

tokens = 1024
width = 4096
t = 0.5


def reference(x, t):
    part = x.abs()
    return (x - t * x / part).where(part > t, 0.0)


class Model(nn.Module):
    """Shrinks every element towards 0 by t."""

    def forward(self, x):
        return reference(x, t)


def get_inputs():
    return [
        torch.rand(tokens, width),
    ]


def get_init_inputs():
    return []
