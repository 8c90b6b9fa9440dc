import torch
import torch.nn as nn

tokens = 1024
k = 1024
width = 1024


def reference(a, w, b):
    sums_2 = a @ w
    return (sums_2 + b).clamp(min=0.0)


class Model(nn.Module):
    """A linear layer and its ReLU."""

    def forward(self, a, w, b):
        return reference(a, w, b)


def get_inputs():
    return [
        torch.rand(tokens, k),
        torch.rand(k, width),
        torch.rand(width),
    ]


def get_init_inputs():
    return []
