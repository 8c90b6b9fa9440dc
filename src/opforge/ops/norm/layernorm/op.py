"""layernorm over the last axis: y = (x - mean) / sqrt(var + eps) * weight + bias."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance
from opforge.definitions.bounds.rows import centred_row, normalised_errors, where_squares_fit
from opforge.definitions.cases import (
    LARGE_SQUARES,
    MANY_NARROW,
    OFFSET_SQUARES,
    ONE_PAST_A_WARP,
    ROWS,
    SPECIAL_SQUARES,
    TINY_EPS,
    WIDE_NORMS,
    row_layouts,
    row_ranks,
)
from opforge.definitions.torch_calls import normalized
from opforge.definitions.workloads import LAYER_NORMS, ROW_SWEEP


def reference(x, weight, bias, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred * (variance + eps).rsqrt() * weight + bias


def magnitude(inputs, outputs, scalars):
    # the size of what gives each element: where it leaves the range of float32 an infinity is right
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    centred = x - x.mean(dim=-1, keepdim=True)
    scale = ((centred * centred).mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    return {"y": weight.abs() * scale * (x.abs().mean(dim=-1, keepdim=True) + centred.abs()) + bias.abs()}


def errors(inputs, outputs, scalars, dtype):
    row = centred_row(inputs["x"], scalars["eps"])
    found = normalised_errors(row, inputs["weight"], inputs["bias"])
    return {"y": where_squares_fit(found, row.squares, magnitude(inputs, outputs, scalars)["y"])}


def no_outlier_beyond_samuelson(inputs, outputs, scalars):
    # P. A. Samuelson, "How deviant can you be?", JASA 63, 1968: among n values none is further from the mean than
    # sqrt(n - 1) deviations
    x, weight, bias, y = inputs["x"], inputs["weight"], inputs["bias"], outputs["y"]
    # 2^-8 of y is half an ulp of bfloat16, the coarsest output; the last term is the rounding of the float32 mean
    rounding = 2.0**-8 * (y.abs() + bias.abs()) + 2.0**-16 * magnitude(inputs, outputs, scalars)["y"]
    excess = ((y - bias).abs() - weight.abs() * (x.shape[-1] - 1) ** 0.5 - rounding).max().item()
    return None if excess <= 0 else f"|y - bias| exceeds |weight| * sqrt(cols - 1) by {excess:.3g}"


def lower(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """As torch.nn.functional.layer_norm: over the last axes, given weight and bias."""
    return normalized(input, normalized_shape, (weight, bias), eps)


operator = Operator(
    name="layernorm",
    about="layer normalisation over the last axis, with weight and bias",
    source="Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450, 2016",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols"),
        TensorSpec(name="bias", shape="cols"),
    ),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    scalars=(Scalar(name="eps", default=1e-5, about="added to the variance"),),
    reference=reference,
    flops="8 * prod(lead) * cols",
    tolerance=Tolerance(errors=errors, shared="cols", about="a row's sums are shared by at least 32 accumulators"),
    laws=(
        Law(
            name="no_outlier_beyond_samuelson",
            about="|y - bias| <= |weight| * sqrt(cols - 1)",
            holds=no_outlier_beyond_samuelson,
        ),
    ),
    cases=(
        *ROWS,
        ONE_PAST_A_WARP,
        Case(name="bert", axes={"lead": (9,), "cols": 768}, why="BERT's width: no power of two, whole 16-byte vectors"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="the variance is 0 and every result is the bias"),
        MANY_NARROW,
        *WIDE_NORMS,
        OFFSET_SQUARES,
        LARGE_SQUARES,
        Case(
            name="tiny_values", axes={"lead": (4,), "cols": 500}, distribution="tiny", why="eps outweighs the variance"
        ),
        TINY_EPS,
        Case(
            name="constant_rows",
            axes={"lead": (4,), "cols": 96},
            distribution="constant_rows",
            why="no variance: eps alone keeps the division finite",
        ),
        SPECIAL_SQUARES,
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=(*LAYER_NORMS, *ROW_SWEEP),
    gradient="layernorm_backward",
    implementations=(
        "cuda_persistent",
        "cuda_onchip",
        "cuda_wide",
        "triton_onchip",
        "tilelang_twopass",
        "cpp_twopass",
        "torch_eager",
        "library_liger",
    ),
    like=(Like(function="torch.nn.functional.layer_norm", lower=lower),),
    used=("language models",),
)
