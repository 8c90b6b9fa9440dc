"""PyTorch's own gelu, the baseline."""

from torch import Tensor
from torch.nn import functional

INACCURATE = "on a CPU (PyTorch 2.13, oneDNN) the erf form is NaN at infinity, and infinite at 3e38"


def run(x: Tensor, approximate: str) -> Tensor:
    return functional.gelu(x, approximate=approximate)
