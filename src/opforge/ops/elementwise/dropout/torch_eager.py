"""What a user calls: torch.nn.functional.dropout. It draws another mask than this operator, from PyTorch's own
generator.
"""

from torch import Tensor
from torch.nn.functional import dropout

INACCURATE = "the same share of other elements is dropped: PyTorch's generator is another, and depends on the device"


def run(x: Tensor, p: float, seed: int) -> Tensor:
    # without anything to drop PyTorch returns x itself
    return dropout(x, p) if p else x.clone()
