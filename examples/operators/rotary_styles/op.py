"""Rotary positions in both styles: the pairs of a head are neighbours (GPT-J), or stand half a head apart (NeoX)."""

import torch

from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload


def pairs(x, style):
    """The first and the second element of each pair: [tokens, heads, half] each."""
    half = x.shape[2] // 2
    return (x[..., :half], x[..., half:]) if style == "halves" else (x[..., 0::2], x[..., 1::2])


def joined(first, second, style):
    """The inverse of `pairs`: [tokens, heads, 2 * half]."""
    if style == "halves":
        return torch.cat((first, second), dim=-1)
    return torch.stack((first, second), dim=-1).reshape(*first.shape[:-1], 2 * first.shape[-1])


def reference(x, cos, sin, *, style):
    a, b = pairs(x, style)
    c, s = cos[:, None], sin[:, None]
    return joined(a * c - b * s, b * c + a * s, style)


def magnitude(inputs, outputs, scalars):
    a, b = pairs(inputs["x"].abs(), scalars["style"])
    c, s = inputs["cos"].abs()[:, None], inputs["sin"].abs()[:, None]
    return {"y": joined(a * c + b * s, b * c + a * s, scalars["style"])}


def axes(tokens, heads, half):
    return {"tokens": tokens, "heads": heads, "half": half}


INTERLEAVED = {"style": "interleaved"}

operator = Operator(
    name="rotary_styles",
    about="rotary position embedding, pairs interleaved (GPT-J) or in halves (NeoX), angles in float32",
    source="Su et al., RoFormer, arXiv:2104.09864, 2021",
    inputs=(
        TensorSpec(name="x", shape="tokens heads 2*half"),
        TensorSpec(name="cos", shape="tokens half", dtype="float32", about="of each token's angles"),
        TensorSpec(name="sin", shape="tokens half", dtype="float32"),
    ),
    outputs=(TensorSpec(name="y", shape="tokens heads 2*half"),),
    scalars=(
        Scalar(
            name="style", default="halves", choices=("halves", "interleaved"), about="where the pairs of a head stand"
        ),
    ),
    reference=reference,
    flops="6 * tokens * heads * half",
    tolerance=Tolerance(factor=2.0, magnitude=magnitude, about="two float32 products, their sum, one rounding"),
    cases=(
        Case(name="one_pair", axes=axes(1, 1, 1), why="both styles are one"),
        Case(name="odd_halves", axes=axes(7, 3, 5), why="no power of two anywhere"),
        Case(name="odd_interleaved", axes=axes(7, 3, 5), scalars=INTERLEAVED, why="no power of two anywhere"),
        Case(name="neox", axes=axes(9, 4, 12), why="24 rotated elements, as in GPT-NeoX 20B"),
        Case(name="gptj", axes=axes(5, 16, 32), scalars=INTERLEAVED, why="64 rotated elements, as in GPT-J 6B"),
        Case(name="empty", axes=axes(0, 2, 8), why="no token"),
        Case(name="empty_interleaved", axes=axes(3, 0, 8), scalars=INTERLEAVED, why="no head"),
        Case(name="large", axes=axes(5, 2, 33), distribution="large", why="sums that a narrow format rounds away"),
        Case(
            name="misaligned", axes=axes(4, 2, 32), layout="misaligned", scalars=INTERLEAVED, why="no 16-byte addresses"
        ),
        Case(
            name="special",
            axes=axes(6, 3, 17),
            distribution="special",
            scalars=INTERLEAVED,
            why="NaN stays in its pair",
        ),
    ),
    workloads=(
        Workload(
            name="gptj_6b_prompt",
            axes=axes(512, 16, 32),
            scalars=INTERLEAVED,
            source="GPT-J 6B: queries of a prompt of 512 tokens",
            scale="laptop",
        ),
        Workload(
            name="llama3_8b_prompt", axes=axes(8192, 32, 64), source="Llama 3 8B: queries of a prompt of 8192 tokens"
        ),
    ),
    implementations=("triton_pairs", "cpp_pairs", "torch_eager"),
)
