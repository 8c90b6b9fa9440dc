"""The same generator in PyTorch's integer operations: some 200 passes over int64.

torch.nn.functional.dropout has a generator of its own, whose mask depends on the device: nothing to compare with
element by element.
"""

import torch
from torch import Tensor

from opforge.core.philox import threshold, words


def run(x: Tensor, p: float, seed: int) -> Tensor:
    index = torch.arange(x.numel(), device=x.device)
    dropped = (words(index, seed) < threshold(p)).view(x.shape)
    return (x.float() * (1 / (1 - p or 1.0))).masked_fill(dropped, 0).to(x.dtype)
