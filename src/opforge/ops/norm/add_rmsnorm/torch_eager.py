"""What a user calls: PyTorch's addition, then its RMS norm; the sum is written, and read again."""

from torch import Tensor
from torch.nn.functional import rms_norm

INACCURATE = (
    "on a GPU (PyTorch 2.11) a row whose length is no multiple of 4 is NaN altogether where it holds one infinity"
)


def run(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, (x.shape[-1],), weight, eps), total
