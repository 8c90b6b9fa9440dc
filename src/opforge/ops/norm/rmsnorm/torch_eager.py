"""What a user calls: torch.nn.functional.rms_norm."""

from torch import Tensor
from torch.nn.functional import rms_norm

INACCURATE = (
    "on a GPU (PyTorch 2.11) a row whose length is no multiple of 4 is NaN altogether where it holds one infinity"
)


def run(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, (x.shape[-1],), weight, eps)
