"""Residual addition and rmsnorm in one: sum = x + residual, y = sum / sqrt(mean(sum^2) + eps) * weight; both are
results.
"""

from opforge.core.definition.dtypes import DTYPES
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.bounds.rows import normalised_errors, row_of_squares, where_squares_fit
from opforge.definitions.bounds.sums import BEYOND, few_ulps
from opforge.definitions.cases import (
    LARGE_SQUARES,
    MANY_NARROW,
    ONE_PAST_A_WARP,
    ROWS,
    TINY_EPS,
    row_layouts,
    row_ranks,
)
from opforge.definitions.workloads import RMS_NORMS


def reference(x, residual, weight, eps):
    total = x + residual
    return total * ((total * total).mean(dim=-1, keepdim=True) + eps).rsqrt() * weight, total


def errors(inputs, outputs, scalars, dtype):
    # the sum is one operation; what follows is rmsnorm, of a sum that is rounded once
    total, y = outputs["total"], outputs["y"]
    row = row_of_squares(total, scalars["eps"])
    found = normalised_errors(row, inputs["weight"]) + few_ulps(y.abs(), 1.0, 0.5)
    # a sum that is stored before its row is normalised may be infinite there
    overflows = (total.abs() >= DTYPES[dtype].largest).any(dim=-1, keepdim=True).double()
    return {
        "y": where_squares_fit(found, row.squares + BEYOND * overflows, y.abs()),
        "total": few_ulps(total.abs(), 1.0, 0.5),
    }


def rounded(inputs, outputs, scalars):
    # The sum may be rounded to the output dtype before it is normalised, as when the two operations are separate. That
    # moves each element by half an ulp at most, and the root mean square by what n such errors of random signs add up
    # to. With an error spread evenly over the ulp its standard deviation is 0.47 half ulps of 1, relative, times
    # sqrt(sum(t^4)) / sum(t^2) (of rows from N(0, 1); the largest of 32768 was 1.9); twice that beside an element just
    # below a power of two, whose own half ulp is half of one of 1. Five stands five deviations away: tens of thousands
    # of rows are looked at in one call.
    total = outputs["total"]
    squares = total * total
    scale = (squares.mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    concentration = (squares * squares).sum(dim=-1, keepdim=True).sqrt() / squares.sum(dim=-1, keepdim=True)
    # a row of zeros, or one with an infinity, has none
    return {"y": (total, scale * inputs["weight"] * (1 + 5 * concentration.nan_to_num(nan=0.0, posinf=0.0)))}


def bounded(inputs, outputs, scalars):
    # no element is larger than sqrt(n) root mean squares of its row; 2^-6 of y covers two roundings to bfloat16, the
    # coarsest output
    y, weight = outputs["y"], inputs["weight"]
    excess = (y.abs() * (1 - 2.0**-6) - weight.abs() * y.shape[-1] ** 0.5).max().item()
    return None if excess <= 0 else f"|y| exceeds |weight| * sqrt(cols) by {excess:.3g}"


def total_is_the_sum(inputs, outputs, scalars):
    exact = inputs["x"] + inputs["residual"]
    # 2^-8: half an ulp of bfloat16; 2^-25: of float16's subnormals
    wrong = ((outputs["total"] - exact).abs() > 2.0**-8 * exact.abs() + 2.0**-25).sum().item()
    return None if not wrong else f"{wrong} elements of total are not x + residual"


operator = Operator(
    name="add_rmsnorm",
    about="residual addition and root-mean-square normalisation over the last axis: y and the new residual",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, 2019; the fusion is that of "
    "vLLM's fused_add_rms_norm",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="residual", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols"),
    ),
    outputs=(
        TensorSpec(name="y", shape="*lead cols"),
        TensorSpec(name="total", shape="*lead cols", about="x + residual, the next layer's residual"),
    ),
    scalars=(Scalar(name="eps", default=1e-6, about="added to the mean of squares"),),
    reference=reference,
    flops="5 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors,
        shared="cols",
        rounded=rounded,
        about="as rmsnorm; the sum may be rounded to the output dtype first",
    ),
    laws=(
        Law(name="bounded", about="|y| <= |weight| * sqrt(cols)", holds=bounded),
        Law(name="total_is_the_sum", about="total = x + residual", holds=total_is_the_sum),
    ),
    cases=(
        *ROWS,
        ONE_PAST_A_WARP,
        Case(
            name="qwen",
            axes={"lead": (9,), "cols": 896},
            why="Qwen2.5 0.5B's width: no power of two, whole 16-byte vectors",
        ),
        Case(
            name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is the weight with the sign of the sum"
        ),
        MANY_NARROW,
        Case(name="wide", axes={"lead": (2,), "cols": 20001}, why="a wide row of odd length"),
        Case(name="wider", axes={"lead": (1,), "cols": 70001}, why="past the shared memory of a block"),
        LARGE_SQUARES,
        Case(
            name="tiny_values",
            axes={"lead": (4,), "cols": 500},
            distribution="tiny",
            why="eps outweighs the mean of squares",
        ),
        TINY_EPS,
        Case(
            name="sparse",
            axes={"lead": (4,), "cols": 96},
            distribution="sparse",
            why="zeros stay zero and still count in the mean",
        ),
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=(
        *RMS_NORMS,
        Workload(
            name="llama31_405b",
            axes={"lead": (8192,), "cols": 16384},
            source="Llama 3.1 405B: hidden size 16384, one context of 8192",
        ),
    ),
    implementations=(
        "cuda_persistent",
        "triton_onchip",
        "tilelang_onepass",
        "cpp_onepass",
        "torch_eager",
        "torch_definition",
        "library_liger",
    ),
    used=("language models",),
)
