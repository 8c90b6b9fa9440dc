"""The gradient of embedding's table: each row is the sum of what arrived for its index."""

from opforge.core.operator import Law, Operator, TensorSpec, Tolerance
from opforge.definitions.embedding import CASES, GRID, PADDED, PADDING, WORKLOADS, added, counted, gradient_errors


def reference(weight, indices, dy, *, padding_idx):
    return added(weight.shape[0], indices, dy, padding_idx)


def errors(inputs, outputs, scalars, dtype):
    return {
        "dweight": gradient_errors(inputs["weight"].shape[0], inputs["indices"], inputs["dy"], scalars["padding_idx"])
    }


def rows_never_picked_are_zero(inputs, outputs, scalars):
    vocab, indices = inputs["weight"].shape[0], inputs["indices"]
    picked = indices.reshape(-1)[counted(indices, vocab, scalars["padding_idx"])].bincount(minlength=vocab) > 0
    wrong = int((outputs["dweight"][~picked] != 0).sum())
    return None if wrong == 0 else f"{wrong} elements of rows that no index names are not 0"


operator = Operator(
    name="embedding_backward",
    about="the gradient of an embedding's table",
    source="torch.ops.aten.embedding_dense_backward; sums in one order, so that each run has the same bits",
    inputs=(
        TensorSpec(name="weight", shape="vocab dim", about="the table, for its shape: its values are not read"),
        TensorSpec(
            name="indices",
            shape="*lead",
            dtype="int64",
            below="vocab",
            sometimes=("padding_idx",),
            about="the row that each row of dy is added to; an index of no row adds nothing",
        ),
        TensorSpec(name="dy", shape="*lead dim"),
    ),
    outputs=(TensorSpec(name="dweight", shape="vocab dim"),),
    scalars=(PADDING,),
    reference=reference,
    differentiable=("dy",),
    flops="prod(lead) * dim",
    bytes_read="prod(lead) * (8 + dim * itemsize)",
    tolerance=Tolerance(
        errors=errors, about="the terms of a row added up in float32, in any order; an only term is copied"
    ),
    laws=(
        Law(name="rows_never_picked_are_zero", about="zeros are written, not left", holds=rows_never_picked_are_zero),
    ),
    cases=(*CASES, PADDED),
    workloads=WORKLOADS,
    grid=GRID,
    implementations=("cuda_ranked", "triton_ranked", "cpp_counted", "torch_eager", "torch_definition"),
)
