"""Two PyTorch calls, as the models' own code has it: silu(gate) is written to memory and read again."""

from torch import Tensor
from torch.nn import functional


def run(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up
