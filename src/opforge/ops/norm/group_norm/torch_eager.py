"""What a user calls: torch.nn.functional.group_norm."""

import torch.nn.functional as F
from torch import Tensor

INACCURATE = (
    "over channels last on a CPU the variance is the mean of squares less the square of the mean, which cancels; and "
    "weight and bias are folded into one factor and one addend, which an infinity makes NaN"
)
# F.group_norm raises ValueError for one value of a channel, which it takes for training on a batch of one
SUPPORTS = {"more_than_one_value_a_channel": "batch * (channels // groups) * prod(spatial) != 1"}


def run(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    return F.group_norm(x, groups, weight, bias, eps)
