"""PyTorch's own layer norm, the baseline."""

from torch import Tensor
from torch.nn.functional import layer_norm

INACCURATE_COMPILED = (
    "compiled for a CPU (PyTorch 2.13) a row of 1025 columns is off by up to 2.6 times the bound in 3 of 100 draws: "
    "the mean and the variance by one running update of each"
)


def run(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x, (x.shape[-1],), weight, bias, eps)
