import torch


def run(x, w):
    return torch.nn.functional.linear(x, w)
