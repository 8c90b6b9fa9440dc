"""Gradients of layernorm: dx, dweight and dbias from x, weight and dy; mean and variance are taken from x again."""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance
from opforge.definitions.bounds.rows import (
    centred_row,
    column_sum_errors,
    expanded_gradient,
    gradient_errors,
    gradient_of_weight,
    lost_below,
    where_squares_fit,
)
from opforge.definitions.cases import (
    LARGE_SQUARES,
    LONG_COLUMNS,
    MANY_NARROW,
    OFFSET_SQUARES,
    ONE_PAST_A_WARP,
    row_layouts,
)
from opforge.definitions.workloads import LAYER_NORMS


def reference(x, weight, dy, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    scale = ((centred * centred).mean(dim=-1, keepdim=True) + eps).rsqrt()
    h = centred * scale
    g = weight * dy
    dx = (g - g.mean(dim=-1, keepdim=True) - h * (g * h).mean(dim=-1, keepdim=True)) * scale
    rows = (-1, x.shape[-1])
    return dx, (dy * h).reshape(rows).sum(dim=0), dy.reshape(rows).sum(dim=0)


def magnitude(inputs, outputs, scalars):
    # the size of what is added up to give each element, with mean|x| where the mean is taken away
    x, weight, dy = inputs["x"], inputs["weight"], inputs["dy"]
    centred = x - x.mean(dim=-1, keepdim=True)
    scale = ((centred * centred).mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    size = scale * (x.abs().mean(dim=-1, keepdim=True) + centred.abs())
    g = (weight * dy).abs()
    terms = g + g.mean(dim=-1, keepdim=True) + size * (g * size).mean(dim=-1, keepdim=True)
    rows = (-1, x.shape[-1])
    return {
        "dx": terms * scale,
        "dweight": (dy.abs() * size).reshape(rows).sum(dim=0),
        "dbias": dy.abs().reshape(rows).sum(dim=0),
    }


def errors(inputs, outputs, scalars, dtype):
    row, dy = centred_row(inputs["x"], scalars["eps"]), inputs["dy"]
    found = {
        "dx": gradient_errors(row, inputs["weight"] * dy),
        "dweight": gradient_of_weight(row, dy),
        "dbias": column_sum_errors(dy),
    }
    sizes = magnitude(inputs, outputs, scalars)
    sizes["dx"] = sizes["dx"].maximum(expanded_gradient(row, inputs["x"], inputs["weight"], dy))
    # dweight has a share of every row, dbias none of their statistics
    found["dx"] = where_squares_fit(found["dx"], row.squares, sizes["dx"])
    found["dweight"] = where_squares_fit(found["dweight"], row.squares.sum(), sizes["dweight"])
    found["dbias"] = Errors(found["dbias"].largest, found["dbias"].typical, sizes["dbias"])
    return found


def shift_moves_nothing(inputs, outputs, scalars):
    if not inputs["x"].numel():
        return None
    # y does not change when a constant is added to a row, so the gradients of the row's elements cancel
    dx, size = outputs["dx"], magnitude(inputs, outputs, scalars)["dx"]
    # 2^-8: each element is rounded to the output dtype, bfloat16 at the coarsest; 2^-25: to float16's subnormals
    slack = 2.0**-8 * dx.abs().sum(dim=-1) + (2.0**-14 * size + 2.0**-25).sum(dim=-1)
    row = centred_row(inputs["x"], scalars["eps"])
    slack = slack + lost_below(row, inputs["weight"] * inputs["dy"]).sum(dim=-1)
    excess = (dx.sum(dim=-1).abs() - slack).max().item()
    return None if excess <= 0 else f"the gradients of a row sum up to {excess:.3g} more than rounding explains"


operator = Operator(
    name="layernorm_backward",
    about="gradients of layer normalisation over the last axis",
    source="Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450, 2016; the chain rule, with mean and "
    "variance as functions of x",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols"),
        TensorSpec(name="dy", shape="*lead cols"),
    ),
    outputs=(
        TensorSpec(name="dx", shape="*lead cols"),
        TensorSpec(name="dweight", shape="cols"),
        TensorSpec(name="dbias", shape="cols"),
    ),
    scalars=(Scalar(name="eps", default=1e-5, about="added to the variance, as in the forward pass"),),
    reference=reference,
    flops="16 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors,
        shared="cols",
        about="a row's sums are shared by at least 32 accumulators; a column's may be added one after another",
    ),
    laws=(Law(name="shift_moves_nothing", about="dx sums up to 0 along a row", holds=shift_moves_nothing),),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call: dbias is dy"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        ONE_PAST_A_WARP,
        Case(name="bert", axes={"lead": (9,), "cols": 768}, why="BERT's width: no power of two, whole 16-byte vectors"),
        Case(
            name="gpt2_xl",
            axes={"lead": (5,), "cols": 1600},
            why="GPT-2 XL's width: vectors that leave part of a warp idle",
        ),
        Case(name="block", axes={"lead": (4,), "cols": 4096}, why="a row shared by a block, its sums in shared memory"),
        Case(
            name="gpt_neox",
            axes={"lead": (5,), "cols": 6144},
            why="GPT-NeoX 20B's width: the most columns of 32 bits whose sums fit a block's registers",
        ),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="no variance: dx is 0, and dweight too"),
        MANY_NARROW,
        LONG_COLUMNS,
        Case(name="wide", axes={"lead": (2,), "cols": 16383}, why="a wide row of odd length"),
        OFFSET_SQUARES,
        LARGE_SQUARES,
        Case(
            name="tiny_values", axes={"lead": (4,), "cols": 500}, distribution="tiny", why="eps outweighs the variance"
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
            why="mostly zeros: dweight and dbias have few terms",
        ),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows: sums of nothing, which are 0"),
        *row_layouts(),
    ),
    workloads=LAYER_NORMS,
    implementations=(
        "cuda_ring",
        "cuda_persistent",
        "triton_persistent",
        "cpp_rows",
        "torch_eager",
        "torch_definition",
    ),
)
