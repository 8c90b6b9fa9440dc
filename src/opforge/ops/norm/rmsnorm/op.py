"""rmsnorm over the last axis: y = x / sqrt(mean(x^2) + eps) * weight."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.bounds.rows import normalised_errors, row_of_squares
from opforge.definitions.cases import (
    LARGE_SQUARES,
    MANY_NARROW,
    ONE_PAST_A_WARP,
    ROWS,
    SPECIAL_SQUARES,
    TINY_EPS,
    WIDE_NORMS,
    row_layouts,
    row_ranks,
)
from opforge.definitions.torch_calls import normalized
from opforge.definitions.workloads import RMS_NORMS, ROW_SWEEP


def reference(x, weight, eps):
    return x * ((x * x).mean(dim=-1, keepdim=True) + eps).rsqrt() * weight


def errors(inputs, outputs, scalars, dtype):
    return {"y": normalised_errors(row_of_squares(inputs["x"], scalars["eps"]), inputs["weight"])}


def bounded(inputs, outputs, scalars):
    # no element is larger than sqrt(n) root mean squares of its row; 2^-7 of y covers the rounding to bfloat16, the
    # coarsest output
    y, weight = outputs["y"], inputs["weight"]
    excess = (y.abs() * (1 - 2.0**-7) - weight.abs() * y.shape[-1] ** 0.5).max().item()
    return None if excess <= 0 else f"|y| exceeds |weight| * sqrt(cols) by {excess:.3g}"


def signs_follow(inputs, outputs, scalars):
    against = (outputs["y"] * (inputs["x"] * inputs["weight"]) < 0).sum().item()
    return None if not against else f"{against} elements have the sign opposite to x * weight"


def lower(input, normalized_shape, weight=None, eps=None):
    """As torch.nn.functional.rms_norm: given a weight, and eps unless the dtype is float32. PyTorch's default in 16
    bits differs between its versions.
    """
    import torch

    if eps is None:
        if input.dtype != torch.float32:
            return f"no eps is given, and its default in {input.dtype} is PyTorch's to know"
        eps = torch.finfo(torch.float32).eps
    return normalized(input, normalized_shape, (weight,), eps)


operator = Operator(
    name="rmsnorm",
    about="root-mean-square normalisation over the last axis, with weight",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, 2019",
    inputs=(TensorSpec(name="x", shape="*lead cols"), TensorSpec(name="weight", shape="cols")),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    scalars=(Scalar(name="eps", default=1e-6, about="added to the mean of squares"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    # Squares are positive: nothing cancels. Rounding x / rms to float16 before the weight, as some models do, is one
    # rounding more than allowed here.
    tolerance=Tolerance(errors=errors, shared="cols", about="a row's sums are shared by at least 32 accumulators"),
    laws=(
        Law(name="bounded", about="|y| <= |weight| * sqrt(cols)", holds=bounded),
        Law(name="signs_follow", about="y has the sign of x * weight", holds=signs_follow),
    ),
    cases=(
        *ROWS,
        ONE_PAST_A_WARP,
        Case(
            name="qwen",
            axes={"lead": (9,), "cols": 896},
            why="Qwen2.5 0.5B's width: no power of two, whole 16-byte vectors",
        ),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is the weight with the sign of x"),
        MANY_NARROW,
        *WIDE_NORMS,
        Case(
            name="offset",
            axes={"lead": (4,), "cols": 333},
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
        TINY_EPS,
        Case(
            name="sparse",
            axes={"lead": (4,), "cols": 96},
            distribution="sparse",
            why="zeros stay zero and still count in the mean",
        ),
        Case(
            name="constant_rows",
            axes={"lead": (4,), "cols": 96},
            distribution="constant_rows",
            why="every result is the weight with the sign of x",
        ),
        SPECIAL_SQUARES,
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=(
        *RMS_NORMS,
        Workload(
            name="qwen3_8b_heads",
            axes={"lead": (8192, 32), "cols": 128},
            source="Qwen3 8B: the norm of 32 query heads of 128, 8192 tokens",
        ),
        *ROW_SWEEP,
    ),
    gradient="rmsnorm_backward",
    implementations=(
        "cuda_persistent",
        "cuda_onchip",
        "cuda_wide",
        "cuda_slices",
        "triton_onchip",
        "tilelang_onepass",
        "cpp_twopass",
        "torch_eager",
        "torch_definition",
        "library_liger",
    ),
    like=(Like(function="torch.nn.functional.rms_norm", lower=lower),),
    used=("language models",),
)
