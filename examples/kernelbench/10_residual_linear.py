import torch
import torch.nn as nn

tokens = 512
k = 2048
width = 512


def reference(a, w, old):
    sums_2 = a @ w.transpose(-1, -2)
    return sums_2 * 0.5 + old


class Model(nn.Module):
    """A linear layer added to what went before."""

    def forward(self, a, w, old):
        return reference(a, w, old)


def get_inputs():
    return [
        torch.rand(tokens, k),
        torch.rand(width, k),
        torch.rand(tokens, width),
    ]


def get_init_inputs():
    return []
