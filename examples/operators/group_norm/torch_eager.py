"""PyTorch's group norm in float32, then weight and bias: together they are folded into one factor and one addend, which
overflow where the result does not.
"""

import torch.nn.functional as F
from torch import Tensor

# F.group_norm raises ValueError for one value of a channel, which it takes for training on a batch of one
SUPPORTS = {"more_than_one_value_a_channel": "batch * (channels // groups) * height * width != 1"}


def run(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    y = F.group_norm(x.float(), groups, eps=eps)
    return (y * weight[:, None, None] + bias[:, None, None]).to(x.dtype)
