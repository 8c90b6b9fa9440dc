"""PyTorch's own mean and variance, each by itself.

Two calls and two reads of x: torch.var_mean reads it once, but its Welford update makes the mean of a row that holds an
infinity NaN instead of infinite.
"""

from torch import Tensor


def run(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(dim=-1), x.var(dim=-1, correction=0)
