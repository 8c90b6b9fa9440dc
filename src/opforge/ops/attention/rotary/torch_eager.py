"""What a PyTorch user writes: angles picked by position, both halves of each pair in float32, joined again."""

from torch import Tensor

from opforge.device.torch.rotary import rotate


def run(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool
) -> tuple[Tensor, Tensor]:
    return rotate(q, k, cos, sin, positions, interleaved, 1)
