"""What PyTorch's autograd runs for embedding."""

import torch
from torch import Tensor

INACCURATE = (
    "on a CPU each sum is rounded to the dtype of dy after every term: a row picked 100 times in bfloat16 is wrong"
)
NOT_CALLED = "an index that no row has is an error here, or memory outside the table"
DETERMINISTIC = False


def run(weight: Tensor, indices: Tensor, dy: Tensor, padding_idx: int) -> Tensor:
    gradient: Tensor = torch.ops.aten.embedding_dense_backward(dy, indices, weight.shape[0], padding_idx, False)
    return gradient
