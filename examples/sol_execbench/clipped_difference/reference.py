import torch


def run(a, b):
    return torch.clamp(a - b, -1.0, 1.0)
