"""The gradient of log_softmax over the last axis: dx = dy - exp(y) * sum(dy), y being what log_softmax returned."""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.bounds.sums import few_ulps, finite, sum_errors
from opforge.definitions.cases import MANY_NARROW, ROWS, row_layouts, row_ranks, wide_rows
from opforge.definitions.workloads import vocabularies


def reference(y, dy):
    return dy - y.exp() * dy.sum(dim=-1, keepdim=True)


def errors(inputs, outputs, scalars, dtype):
    y, dy = inputs["y"], inputs["dy"]
    # an argument of exp that is off by e makes its result wrong by the factor 1 + e
    product = finite(y.exp() * dy.sum(dim=-1, keepdim=True)).abs()
    found = (
        sum_errors(dy).times(finite(y.exp()))
        + few_ulps((2 + finite(y).abs()) * product, 3.0, 1.0)
        + few_ulps(finite(dy).abs(), 1.0, 0.5)
    )
    total = dy.abs().sum(dim=-1, keepdim=True)
    # an exponential below 2^-126 may be flushed to 0 before it meets the sum
    flushed = 2.0**-125 * finite(total)
    found = found + Errors(flushed, flushed)
    # an infinite sum meets what is subtracted from it, and an exponential that is 0
    reached = (dy.abs() + y.exp() + (1 + y.exp()) * 4 * total).nan_to_num(nan=0.0)
    return {"dx": Errors(found.largest, found.typical, reached)}


def unmoved_where_nothing_flows(inputs, outputs, scalars):
    # a row whose dy is zero throughout has no gradient
    still = (inputs["dy"] == 0).all(dim=-1)
    moved = outputs["dx"][still].abs()
    return (
        None
        if not moved.numel() or moved.max().item() == 0
        else f"dx is {moved.max().item():.3g} in a row without a gradient"
    )


operator = Operator(
    name="log_softmax_backward",
    about="the gradient of log_softmax over the last axis, from its result",
    source="the Jacobian of log_softmax is I - 1 softmax^T",
    inputs=(
        TensorSpec(name="y", shape="*lead cols", about="what log_softmax returned"),
        TensorSpec(name="dy", shape="*lead cols", about="the gradient of y"),
    ),
    outputs=(TensorSpec(name="dx", shape="*lead cols"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors,
        shared="cols",
        about="exp within a few units of its last place; the sum shared by at least 32 accumulators",
    ),
    laws=(Law(name="zero_passes_nothing", about="dx is 0 in a row whose dy is 0", holds=unmoved_where_nothing_flows),),
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
        Case(name="tiny_values", axes={"lead": (4,), "cols": 257}, distribution="tiny", why="exp(y) is close to 1"),
        Case(
            name="special",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            why="NaN and infinities reach their whole row",
        ),
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=vocabularies(),
    implementations=("cuda_onchip", "triton_onepass", "triton_twopass", "cpp_twopass", "torch_eager"),
)
