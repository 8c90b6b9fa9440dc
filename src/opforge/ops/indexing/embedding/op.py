"""embedding: a row of a table for each index."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Operator, TensorSpec
from opforge.definitions.embedding import CASES, GRID, PADDING, WORKLOADS
from opforge.definitions.tolerances import MOVED


def reference(weight, indices, *, padding_idx):
    known = (indices >= 0) & (indices < weight.shape[0])
    rows = weight[indices.where(known, indices.new_zeros(()))]
    # no row has such an index: there is no answer
    return rows.where(known.unsqueeze(-1), weight.new_full((), float("nan")))


def lower(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    """As torch.nn.functional.embedding: indices of int64, rows as they are and dense gradients. An index that no row
    has is PyTorch's error on a CPU; on a GPU, and in a compiled graph, its row is NaN.
    """
    import torch

    if max_norm is not None or scale_grad_by_freq or sparse:
        return "the operator changes no row, counts no index and has a dense gradient"
    if not isinstance(weight, torch.Tensor) or weight.layout is not torch.strided or weight.ndim != 2:
        return "the table is no matrix in plain memory"
    if input.dtype != torch.int64 or input.device != weight.device or not input.is_contiguous():
        return "embedding takes contiguous indices of int64 on the device of the table"
    vocab = weight.shape[0]
    if padding_idx is None:
        padding_idx = -1
    elif not isinstance(padding_idx, int) or not -vocab <= padding_idx < vocab:
        return "there is no row of that padding_idx"
    elif padding_idx < 0:
        padding_idx += vocab
    if not vocab:
        return "the table has no row"
    if input.is_cpu and input.numel() and not torch.compiler.is_compiling():
        low, high = input.aminmax()
        if low < 0 or high >= vocab:
            return "an index names no row"
    return Lowered((weight, input), {"padding_idx": padding_idx})


operator = Operator(
    name="embedding",
    about="a row of a table for each index",
    source="torch.nn.functional.embedding; the order of the arguments is aten's",
    inputs=(
        TensorSpec(name="weight", shape="vocab dim", about="the table"),
        TensorSpec(
            name="indices",
            shape="*lead",
            dtype="int64",
            below="vocab",
            about="which row is picked; where there is no such row the result is NaN",
        ),
    ),
    outputs=(TensorSpec(name="y", shape="*lead dim"),),
    scalars=(PADDING,),
    reference=reference,
    differentiable=("weight",),
    flops="0",
    bytes_read="prod(lead) * (8 + dim * itemsize)",
    tolerance=MOVED,
    cases=CASES,
    workloads=WORKLOADS,
    grid=GRID,
    gradient="embedding_backward",
    implementations=("cuda_vectors", "triton_rows", "cpp_rows", "torch_eager"),
    like=(Like(function="torch.nn.functional.embedding", lower=lower, autocast=False),),
    used=("language models",),
)
