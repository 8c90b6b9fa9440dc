"""What a user calls: torch.nn.functional.cross_entropy, without reduction."""

from torch import Tensor
from torch.nn.functional import cross_entropy

NOT_CALLED = "an index that no class has is an error here: on a GPU an assertion that ends the process's use of it"
INACCURATE = (
    "in 16 bits the logarithm of softmax is rounded before it is used: on a CPU (PyTorch 2.13) 2 % off near "
    "0, with label smoothing everywhere"
)


def run(x: Tensor, target: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    loss = cross_entropy(
        x.reshape(-1, x.shape[-1]),
        target.reshape(-1),
        ignore_index=ignore_index,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return loss.reshape(target.shape)
