"""layernorm over the last axis followed by dropout: y = h / (1 - p) or 0, h = (x - mean) / sqrt(var + eps) * weight +
bias.
"""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Constraint, Law, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.core.philox import threshold, words
from opforge.definitions.bounds.rows import centred_row, normalised_errors, where_squares_fit
from opforge.definitions.bounds.sums import few_ulps
from opforge.definitions.cases import (
    LARGE_SQUARES,
    OFFSET_SQUARES,
    ONE_PAST_A_WARP,
    SPECIAL_SQUARES,
    TINY_EPS,
    WIDE_NORMS,
)


def mask(x, p, seed):
    """Which elements of x are dropped."""
    index = x.new_ones(x.numel()).long().cumsum(dim=0) - 1
    return (words(index, seed) < threshold(p)).view(x.shape)


def reference(x, weight, bias, eps, p, seed):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    h = centred * (variance + eps).rsqrt() * weight + bias
    # a dropped element is 0 whatever it was, NaN included
    return (h / (1 - p or 1.0)).masked_fill(mask(x, p, seed), 0)


def magnitude(inputs, outputs, scalars):
    # that of layernorm, times 1 / (1 - p); where an element is dropped 0 is exact
    x, weight, bias, p = inputs["x"], inputs["weight"], inputs["bias"], scalars["p"]
    centred = x - x.mean(dim=-1, keepdim=True)
    scale = ((centred * centred).mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    terms = weight.abs() * scale * (x.abs().mean(dim=-1, keepdim=True) + centred.abs()) + bias.abs()
    return {"y": (terms / (1 - p or 1.0)).masked_fill(mask(x, p, scalars["seed"]), 0)}


def errors(inputs, outputs, scalars, dtype):
    kept = (~mask(inputs["x"], scalars["p"], scalars["seed"])).double() / (1 - scalars["p"] or 1.0)
    row = centred_row(inputs["x"], scalars["eps"])
    found = where_squares_fit(normalised_errors(row, inputs["weight"], inputs["bias"]), row.squares, 0.0).times(kept)
    sizes = magnitude(inputs, outputs, scalars)["y"].maximum(found.reached * (kept > 0))
    found = found + few_ulps(outputs["y"].abs(), 2.0, 1.0)
    return {"y": Errors(found.largest, found.typical, sizes)}


def rounded(inputs, outputs, scalars):
    # h may be rounded to the output dtype before dropout, as when the two operations are separate
    p = scalars["p"]
    return {"y": (outputs["y"] * (1 - p), outputs["y"].new_full((), 1 / (1 - p or 1.0)))}


def dropped_are_zero(inputs, outputs, scalars):
    wrong = ((outputs["y"] != 0) & mask(inputs["x"], scalars["p"], scalars["seed"])).sum().item()
    return None if not wrong else f"{wrong} elements that the seed drops are not 0"


def no_outlier_beyond_samuelson(inputs, outputs, scalars):
    # P. A. Samuelson, "How deviant can you be?", JASA 63, 1968: among n values none is further from the mean than
    # sqrt(n - 1) deviations
    x, weight, bias, y, p = inputs["x"], inputs["weight"], inputs["bias"], outputs["y"], scalars["p"]
    # 2^-7 of y is twice half an ulp of bfloat16, the coarsest output; the last term is the rounding of the float32 mean
    rounding = 2.0**-7 * (y.abs() * (1 - p) + bias.abs()) + 2.0**-16 * magnitude(inputs, outputs, scalars)["y"]
    excess = (y.abs() * (1 - p) - bias.abs() - weight.abs() * (x.shape[-1] - 1) ** 0.5 - rounding).max().item()
    return None if excess <= 0 else f"|y| exceeds (|weight| * sqrt(cols - 1) + |bias|) / (1 - p) by {excess:.3g}"


operator = Operator(
    name="layernorm_dropout",
    about="layer normalisation over the last axis, with weight and bias, then dropout",
    source="Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450, 2016; dropout as in the operator dropout",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols"),
        TensorSpec(name="bias", shape="cols"),
    ),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    scalars=(
        Scalar(name="eps", default=1e-5, about="added to the variance"),
        Scalar(name="p", default=0.1, about="the probability that an element is dropped"),
        Scalar(name="seed", default=0, about="64 bits; the same seed gives the same mask on every backend"),
    ),
    constraints=(
        Constraint(name="is_a_probability", expression="p >= 0 and p <= 1", about="with p = 1 all elements are 0"),
    ),
    reference=reference,
    flops="9 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors, rounded=rounded, shared="cols", about="a row's sums are shared by at least 32 accumulators"
    ),
    laws=(
        Law(name="dropped_are_zero", about="the seed's mask", holds=dropped_are_zero),
        Law(
            name="no_outlier_beyond_samuelson",
            about="|y| * (1 - p) <= |weight| * sqrt(cols - 1) + |bias|",
            holds=no_outlier_beyond_samuelson,
        ),
    ),
    cases=(
        Case(
            name="one_row",
            axes={"lead": (1,), "cols": 64},
            scalars={"p": 0.0},
            why="the smallest useful call: plain layernorm",
        ),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(
            name="prime",
            axes={"lead": (3, 5), "cols": 1021},
            scalars={"p": 0.5, "seed": 9},
            why="rows that begin inside a block of the generator; a prime width and two leading axes",
        ),
        ONE_PAST_A_WARP,
        Case(name="bert", axes={"lead": (9,), "cols": 768}, why="BERT's width: no power of two, whole 16-byte vectors"),
        Case(
            name="one_column",
            axes={"lead": (5,), "cols": 1},
            scalars={"p": 0.0},
            why="the variance is 0 and every result is the bias",
        ),
        Case(
            name="many_narrow",
            axes={"lead": (130,), "cols": 8},
            scalars={"p": 0.3, "seed": -1},
            why="more rows than one program takes, each narrower than a warp",
        ),
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
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows at all"),
        Case(
            name="vector",
            axes={"lead": (), "cols": 100},
            scalars={"p": 0.5, "seed": 2**40 + 1},
            why="a seed of more than 32 bits, and a vector: no leading axis",
        ),
        Case(
            name="transposed",
            axes={"lead": (33,), "cols": 65},
            layout="transposed",
            why="strides that are not row-major",
        ),
        Case(
            name="sliced_rows",
            axes={"lead": (9,), "cols": 128},
            layout="sliced",
            why="rows inside a wider matrix, off the 16-byte grid",
        ),
        Case(
            name="misaligned",
            axes={"lead": (6,), "cols": 256},
            layout="misaligned",
            scalars={"p": 0.5},
            why="16-byte loads would fault or read the neighbour",
        ),
    ),
    workloads=(
        Workload(
            name="bert_base_embeddings",
            axes={"lead": (4, 512), "cols": 768},
            source="BERT-base: embeddings, layer norm then dropout 0.1, 4 sequences of 512",
            scale="laptop",
        ),
        Workload(
            name="electra_small_embeddings",
            axes={"lead": (16, 128), "cols": 128},
            source="ELECTRA-small: embeddings of 128, layer norm then dropout 0.1",
            scale="laptop",
        ),
        Workload(
            name="bert_large_embeddings",
            axes={"lead": (64, 512), "cols": 1024},
            source="BERT-large: embeddings, layer norm then dropout 0.1, 64 sequences of 512",
        ),
        Workload(
            name="roberta_large_embeddings",
            axes={"lead": (256, 512), "cols": 1024},
            source="RoBERTa-large: embeddings, layer norm then dropout 0.1, 256 sequences of 512",
        ),
        Workload(
            name="deberta_xxlarge_embeddings",
            axes={"lead": (64, 512), "cols": 1536},
            source="DeBERTa-v2-xxlarge: embeddings of 1536, layer norm then dropout 0.1, 64 sequences of 512",
        ),
    ),
    implementations=("cuda_persistent", "triton_onchip", "cpp_twopass", "torch_eager", "torch_definition"),
)
