"""PyTorch's own product and sum, the baseline."""

from torch import Tensor


def run(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = x.clone() if weight is None else x * weight
    return y if bias is None else y + bias
