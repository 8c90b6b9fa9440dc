"""What a user calls. Its offsets begin the bags; the last one, which ends them, is included."""

from torch import Tensor
from torch.nn.functional import embedding_bag


def run(table: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
    if len(offsets) == 1:
        return table.new_empty(0, table.shape[1])
    return embedding_bag(indices, table, offsets, mode="sum", include_last_offset=True)
