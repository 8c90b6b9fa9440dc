"""What PyTorch's autograd runs for cross_entropy: the gradient of the picked scores, then that of log_softmax, whose
result the forward pass left.
"""

import torch
from torch import Tensor

NOT_CALLED = "an index that no class has is an error here: on a GPU an assertion that ends the process's use of it"
INACCURATE = (
    "the forward pass leaves log_softmax in the dtype of x: in bfloat16 each probability is off by |log p| "
    "/ 512 of itself; and in every dtype a row that is ignored and holds a NaN or +inf has the gradient NaN, not 0"
)


def keep(x: Tensor, target: Tensor, dloss: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    scores = torch.log_softmax(x.reshape(-1, x.shape[-1]), dim=-1)
    _, weight = torch.ops.aten.nll_loss_forward(scores, target.reshape(-1), None, 0, ignore_index)
    return scores, weight


def run(
    x: Tensor, target: Tensor, dloss: Tensor, scores: Tensor, weight: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    arrived, picked = dloss.reshape(-1), target.reshape(-1)
    kept = arrived if not label_smoothing else arrived * (1 - label_smoothing)
    gradient = torch.ops.aten.nll_loss_backward(kept, scores, picked, None, 0, ignore_index, weight)
    if label_smoothing:
        spread = arrived.masked_fill(picked == ignore_index, 0) * (-label_smoothing / x.shape[-1])
        gradient = gradient + spread.unsqueeze(-1)
    return torch.ops.aten._log_softmax_backward_data(gradient, scores, -1, x.dtype).reshape(x.shape)
