"""The gradient of softmax over the last axis: dx = y * (dy - sum(y * dy)), y being what softmax returned."""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.bounds.sums import few_ulps, finite, sum_errors
from opforge.definitions.cases import MANY_NARROW, ROWS, row_layouts, row_ranks, wide_rows
from opforge.definitions.workloads import SOFTMAXES


def reference(y, dy):
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def errors(inputs, outputs, scalars, dtype):
    y, dy = inputs["y"], inputs["dy"]
    terms = y * dy
    difference = finite(dy).abs() + finite(terms.sum(dim=-1, keepdim=True)).abs()
    found = (sum_errors(terms) + few_ulps(difference, 2.0, 1.0)).times(finite(y))
    # an infinite sum meets what is subtracted from it
    total = 4 * terms.abs().sum(dim=-1, keepdim=True)
    reached = (total + y.abs() * (dy.abs() + total)).nan_to_num(nan=0.0)
    return {"dx": Errors(found.largest, found.typical, reached)}


def unmoved_where_nothing_flows(inputs, outputs, scalars):
    # a y of zero, which a mask of -inf gives, passes nothing on
    moved = outputs["dx"][inputs["y"] == 0].abs()
    return None if not moved.numel() or moved.max().item() == 0 else f"dx is {moved.max().item():.3g} where y is 0"


operator = Operator(
    name="softmax_backward",
    about="the gradient of softmax over the last axis, from its result",
    source="the Jacobian of softmax is diag(y) - y y^T; Bridle 1990",
    inputs=(
        TensorSpec(name="y", shape="*lead cols", about="what softmax returned"),
        TensorSpec(name="dy", shape="*lead cols", about="the gradient of y"),
    ),
    outputs=(TensorSpec(name="dx", shape="*lead cols"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    tolerance=Tolerance(errors=errors, shared="cols", about="the sum is shared by at least 32 accumulators"),
    laws=(Law(name="zero_passes_nothing", about="dx is 0 where y is 0", holds=unmoved_where_nothing_flows),),
    cases=(
        *ROWS,
        Case(
            name="past_one_warp",
            axes={"lead": (3,), "cols": 2056},
            why="past what a warp keeps in registers, in whole 16-byte vectors",
        ),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="a single term in each sum"),
        MANY_NARROW,
        *wide_rows(),
        Case(
            name="large_values",
            axes={"lead": (4,), "cols": 257},
            distribution="large",
            why="products of 40000 times 200",
        ),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 257}, distribution="tiny", why="products of tiny values"),
        Case(
            name="offset",
            axes={"lead": (4,), "cols": 333},
            distribution="offset",
            why="a sum much larger than any term",
        ),
        Case(
            name="special",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            why="NaN and infinities reach their whole row",
        ),
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=SOFTMAXES,
    implementations=(
        "cuda_onchip",
        "triton_onepass",
        "triton_twopass",
        "tilelang_onepass",
        "cpp_twopass",
        "torch_eager",
        "torch_definition",
    ),
)
