"""The gradient of softmax over the last axis: dx = y * (dy - sum(y * dy)), y being what softmax returned."""

from opforge.core.cases import MANY_NARROW, ROWS, row_layouts, row_ranks, wide_rows
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.core.workloads import SOFTMAXES


def reference(y, dy):
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def magnitude(inputs, outputs, scalars):
    y, dy = inputs["y"], inputs["dy"]
    terms = y * dy
    # partial sums of terms with random signs grow like the root of the sum of squares, those of terms with one sign like the sum
    partial = terms.sum(dim=-1, keepdim=True).abs() + terms.square().sum(dim=-1, keepdim=True).sqrt()
    # 0 * inf would say NaN of an element whose bound is not asked for
    return {"dx": (y.abs() * (dy.abs() + partial)).nan_to_num(nan=0.0)}


def unmoved_where_nothing_flows(inputs, outputs, scalars):
    # a y of zero, which a mask of -inf gives, passes nothing on
    moved = outputs["dx"][inputs["y"] == 0].abs()
    return None if not moved.numel() or moved.max().item() == 0 else f"dx is {moved.max().item():.3g} where y is 0"


operator = Operator(
    name="softmax_backward",
    about="the gradient of softmax over the last axis, from its result",
    source="the Jacobian of softmax is diag(y) - y y^T; Bridle 1990",
    inputs=(TensorSpec(name="y", shape="*lead cols", about="what softmax returned"), TensorSpec(name="dy", shape="*lead cols", about="the gradient of y")),
    outputs=(TensorSpec(name="dx", shape="*lead cols"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    laws=(Law(name="zero_passes_nothing", about="dx is 0 where y is 0", holds=unmoved_where_nothing_flows),),
    cases=(
        *ROWS,
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 2056}, why="past what a warp keeps in registers, in whole 16-byte vectors"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="a single term in each sum"),
        MANY_NARROW,
        *wide_rows(),
        Case(name="large_values", axes={"lead": (4,), "cols": 257}, distribution="large", why="products of 40000 times 200"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 257}, distribution="tiny", why="products of tiny values"),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a sum much larger than any term"),
        Case(name="special", axes={"lead": (9,), "cols": 67}, distribution="special", why="NaN and infinities reach their whole row"),
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=SOFTMAXES,
    implementations=("cuda_onchip", "triton_onepass", "triton_twopass", "tilelang_onepass", "cpp_twopass", "torch_eager"),
)
