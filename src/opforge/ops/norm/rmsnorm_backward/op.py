"""Gradients of rmsnorm: dx and dweight from x, weight and dy; the mean of squares is taken from x again."""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.bounds.rows import (
    gradient_errors,
    gradient_of_weight,
    lost_below,
    row_of_squares,
    unscaled_sums,
)
from opforge.definitions.cases import LARGE_SQUARES, LONG_COLUMNS, MANY_NARROW, ONE_PAST_A_WARP, ROWS, row_layouts
from opforge.definitions.workloads import RMS_NORMS


def reference(x, weight, dy, eps):
    scale = ((x * x).mean(dim=-1, keepdim=True) + eps).rsqrt()
    h = x * scale
    g = weight * dy
    dx = (g - h * (g * h).mean(dim=-1, keepdim=True)) * scale
    return dx, (dy * h).reshape(-1, x.shape[-1]).sum(dim=0)


def magnitude(inputs, outputs, scalars):
    # squares are positive, so h = x / rms has a relative error; dx adds up g and h * mean(g * h), dweight the products
    # dy * h
    x, weight, dy = inputs["x"], inputs["weight"], inputs["dy"]
    scale = ((x * x).mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    h, g = (x * scale).abs(), (weight * dy).abs()
    terms = g + h * (g * h).mean(dim=-1, keepdim=True)
    return {"dx": terms * scale, "dweight": (dy.abs() * h).reshape(-1, x.shape[-1]).sum(dim=0)}


def errors(inputs, outputs, scalars, dtype):
    row, dy = row_of_squares(inputs["x"], scalars["eps"]), inputs["dy"]
    found = {"dx": gradient_errors(row, inputs["weight"] * dy), "dweight": gradient_of_weight(row, dy)}
    sizes = magnitude(inputs, outputs, scalars)
    sizes["dx"] = sizes["dx"].maximum(unscaled_sums(inputs["x"], inputs["weight"] * dy))
    return {name: Errors(errors.largest, errors.typical, sizes[name]) for name, errors in found.items()}


def scaling_moves_little(inputs, outputs, scalars):
    if not inputs["x"].numel():
        return None
    # sum(x * dx) = sum(g * h) * eps / (mean(x^2) + eps): were it not for eps, y would not change when a row is
    # multiplied by a constant
    x, dx, eps = inputs["x"], outputs["dx"], scalars["eps"]
    squares = (x * x).mean(dim=-1)
    g = inputs["weight"] * inputs["dy"]
    expected = (g * x).sum(dim=-1) * (squares + eps).rsqrt() * eps / (squares + eps)
    size = magnitude(inputs, outputs, scalars)["dx"]
    # 2^-8: each element is rounded to the output dtype, bfloat16 at the coarsest; 2^-25: to float16's subnormals
    slack = 2.0**-8 * (x * dx).abs().sum(dim=-1) + (x.abs() * (2.0**-14 * size + 2.0**-25)).sum(dim=-1)
    slack = slack + (x.abs() * lost_below(row_of_squares(x, eps), g)).sum(dim=-1)
    excess = (((x * dx).sum(dim=-1) - expected).abs() - slack).max().item()
    return None if excess <= 0 else f"sum(x * dx) of a row is off by {excess:.3g} more than rounding explains"


operator = Operator(
    name="rmsnorm_backward",
    about="gradients of root-mean-square normalisation over the last axis",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, 2019; the chain rule, with "
    "the mean of squares as a function of x",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols"),
        TensorSpec(name="dy", shape="*lead cols"),
    ),
    outputs=(TensorSpec(name="dx", shape="*lead cols"), TensorSpec(name="dweight", shape="cols")),
    scalars=(Scalar(name="eps", default=1e-6, about="added to the mean of squares, as in the forward pass"),),
    reference=reference,
    flops="12 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors,
        shared="cols",
        about="a row's sums are shared by at least 32 accumulators; a column's may be added one after another",
    ),
    laws=(
        Law(name="scaling_moves_little", about="sum(x * dx) is what eps alone explains", holds=scaling_moves_little),
    ),
    cases=(
        *ROWS,
        ONE_PAST_A_WARP,
        Case(
            name="qwen",
            axes={"lead": (9,), "cols": 896},
            why="Qwen2.5 0.5B's width: no power of two, and whole 16-byte vectors",
        ),
        Case(
            name="phi",
            axes={"lead": (5,), "cols": 3072},
            why="Phi-3 mini's width: vectors that leave part of a warp idle",
        ),
        Case(name="block", axes={"lead": (4,), "cols": 4096}, why="a row shared by a block, its sums in shared memory"),
        Case(
            name="llama3_70b",
            axes={"lead": (5,), "cols": 8192},
            why="Llama 3 70B's width: the most columns of 32 bits whose sums fit a block's registers",
        ),
        Case(
            name="one_column",
            axes={"lead": (5,), "cols": 1},
            scalars={"eps": 0.5},
            why="y is close to the sign of x: dx is what eps leaves",
        ),
        MANY_NARROW,
        LONG_COLUMNS,
        Case(name="wide", axes={"lead": (2,), "cols": 16383}, why="a wide row of odd length"),
        Case(
            name="offset",
            axes={"lead": (64,), "cols": 257},
            distribution="offset",
            why="the mean is not taken away: that is layernorm",
        ),
        LARGE_SQUARES,
        Case(
            name="tiny_values",
            axes={"lead": (4,), "cols": 500},
            distribution="tiny",
            why="eps outweighs the mean of squares",
        ),
        Case(
            name="tiny_eps",
            axes={"lead": (4,), "cols": 500},
            scalars={"eps": 1e-12},
            why="eps must be the one that was passed",
        ),
        Case(
            name="sparse",
            axes={"lead": (33,), "cols": 96},
            distribution="sparse",
            why="mostly zeros: dweight has few terms",
        ),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows: sums of nothing, which are 0"),
        *row_layouts(),
    ),
    workloads=(
        *RMS_NORMS,
        Workload(
            name="qwen3_8b_heads",
            axes={"lead": (8192, 32), "cols": 128},
            source="Qwen3 8B: the norm of 32 query heads of 128, 8192 tokens",
        ),
    ),
    implementations=(
        "cuda_ring",
        "cuda_persistent",
        "triton_persistent",
        "cpp_rows",
        "torch_eager",
        "torch_definition",
    ),
)
