"""PyTorch's group norm in float32, then weight and bias: together they are folded into one factor and one addend, which
overflow where the result does not.
"""

import torch.nn.functional as F
from torch import Tensor


def run(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    y = F.group_norm(x.float(), groups, eps=eps)
    return (y * weight[:, None, None] + bias[:, None, None]).to(x.dtype)
