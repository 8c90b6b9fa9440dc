"""What a user calls: torch.nn.functional.embedding. An index that no row has is an error on a CPU."""

from torch import Tensor
from torch.nn import functional


def run(weight: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
    return functional.embedding(indices, weight)
