"""What a user calls: torch.var_mean, one read of x."""

import torch
from torch import Tensor

INACCURATE = "the mean of a row that holds an infinity is NaN: the update of both in one pass subtracts it from itself"


def run(x: Tensor) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, dim=-1, correction=0)
    return mean, variance
