"""Rotary positions of queries and keys: the rotation and its gradient, which is the rotation the other way round.

Functions work on whatever has the methods of a tensor, so no library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opforge.core.definition.operator import Case, Constraint, Scalar, TensorSpec, Tolerance, Workload

SOURCE = "Su et al., RoFormer, arXiv:2104.09864, 2021; halves as in GPT-NeoX and Llama, interleaved as in GPT-J"

INTERLEAVED = Scalar(
    name="interleaved",
    default=False,
    choices=(False, True),
    about="the pairs of a head are elements 2i and 2i + 1; otherwise i and i + half",
)
CONSTRAINTS = (
    Constraint(name="rotates_a_part", expression="half >= 1 and 2 * half <= dim", about="the rest is left as it is"),
    Constraint(
        name="has_the_places",
        expression="places >= 1 and (has_positions or tokens <= places)",
        about="without positions token t stands at place t",
    ),
)
ANGLES = (
    TensorSpec(name="cos", shape="places half", dtype="float32", about="of the angles of each place"),
    TensorSpec(name="sin", shape="places half", dtype="float32"),
    TensorSpec(
        name="positions",
        shape="*batch tokens",
        dtype="int64",
        below="places",
        optional=True,
        about="the place of each token; where there is no such place its rotated elements are NaN",
    ),
)
FLOPS = "6 * prod(batch) * tokens * (heads + kv_heads) * half"
BYTES_READ = (
    "prod(batch) * tokens * ((heads + kv_heads) * dim * itemsize + 8 * has_positions)"
    " + 8 * half * (min(places, prod(batch) * tokens) if has_positions else tokens)"
)
TOLERANCE = "two float32 products and their sum, rounded once; what is not rotated is copied"


def angles(cos: Any, sin: Any, positions: Any, tokens: int) -> tuple[Any, Any]:
    """cos and sin of each token, [..., tokens, 1, half]; NaN where there is no such place."""
    if positions is None:
        return cos[:tokens].unsqueeze(-2), sin[:tokens].unsqueeze(-2)
    known = (positions >= 0) & (positions < cos.shape[0])
    place = positions.where(known, positions.new_zeros(()))
    nan = cos.new_full((), float("nan"))
    first, second = (table[place].where(known.unsqueeze(-1), nan).unsqueeze(-2) for table in (cos, sin))
    return first, second


def turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """x [..., heads, dim] with the pairs of its first 2 * half elements turned by the angles [..., 1, half]."""
    half = cos.shape[-1]
    axis, sizes = (-1, (half, 2)) if interleaved else (-2, (2, half))
    pairs = x[..., : 2 * half].unflatten(-1, sizes)
    a, b = pairs.unbind(axis)
    y = x.clone()
    parts = y[..., : 2 * half].unflatten(-1, sizes)
    parts.select(axis, 0).copy_(a * cos - b * sin)
    parts.select(axis, 1).copy_(b * cos + a * sin)
    return y


def added_up(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """The sum of the sizes of both products of each element; 0 where an element is copied."""
    half = cos.shape[-1]
    size = turned(x.abs(), cos.abs(), -sin.abs(), interleaved)
    other = turned(x.abs(), cos.abs(), sin.abs(), interleaved)
    size = size.maximum(other)
    size[..., 2 * half :] = 0.0
    return size


def rotation(q: Any, k: Any, cos: Any, sin: Any, positions: Any, interleaved: bool, sign: float = 1.0) -> Any:
    """Queries and keys turned by their angles; by the negative ones where the sign is -1."""
    c, s = angles(cos, sin, positions, q.shape[-3])
    return turned(q, c, sign * s, interleaved), turned(k, c, sign * s, interleaved)


def tolerance_of(names: Sequence[tuple[str, str]]) -> Tolerance:
    """The bound of outputs that turn inputs: (output, input)."""

    def magnitude(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scalars: Mapping[str, Any]) -> dict[str, Any]:
        x = inputs[names[0][1]]
        c, s = angles(inputs["cos"], inputs["sin"], inputs["positions"], x.shape[-3])
        return {output: added_up(inputs[given], c, s, bool(scalars["interleaved"])) for output, given in names}

    return Tolerance(factor=1.0, magnitude=magnitude, about=TOLERANCE)


def longer_by_the_radius(inputs: Mapping[str, Any], scalars: Mapping[str, Any], before: Any, after: Any) -> str | None:
    """None where each pair is as long as before, times the length of (cos, sin)."""
    c, s = angles(inputs["cos"], inputs["sin"], inputs["positions"], before.shape[-3])
    half = c.shape[-1]
    axis, sizes = (-1, (half, 2)) if scalars["interleaved"] else (-2, (2, half))
    lengths = [x[..., : 2 * half].unflatten(-1, sizes).square().sum(axis).sqrt() for x in (before, after)]
    wanted = lengths[0] * (c.square() + s.square()).sqrt()
    # 2^-8: both elements are rounded to bfloat16 at the coarsest; 2^-24: to float16's subnormals. What overflowed is
    # the oracle's affair
    off = ((lengths[1] - wanted).abs() - 2.0**-7 * wanted - 2.0**-24).where(
        lengths[1].isfinite() & wanted.isfinite(), wanted.new_zeros(())
    )
    if not off.numel() or off.max().item() <= 0:
        return None
    return f"a pair is {off.max().item():.3g} longer or shorter than its rotation makes it"


def rotary_axes(
    batch: tuple[int, ...], tokens: int, heads: int, kv_heads: int, dim: int, half: int, places: int = 0
) -> dict[str, int | tuple[int, ...]]:
    """The axes of a call; as many places as tokens where none are given."""
    return {
        "batch": batch,
        "tokens": tokens,
        "heads": heads,
        "kv_heads": kv_heads,
        "dim": dim,
        "half": half,
        "places": places or max(1, tokens),
    }


_PAIRS = {"interleaved": True}
_IN_ORDER = {"has_positions": False}

CASES = (
    Case(name="one_pair", axes=rotary_axes((), 1, 1, 1, 2, 1), why="the smallest call: both styles are one"),
    Case(name="odd", axes=rotary_axes((2,), 7, 3, 1, 10, 5, 11), why="no power of two anywhere"),
    Case(name="odd_pairs", axes=rotary_axes((2,), 7, 3, 1, 10, 5, 11), scalars=_PAIRS, why="the same, pair by pair"),
    Case(name="llama3", axes=rotary_axes((1,), 9, 8, 2, 128, 64, 40), why="heads of 128, four queries to a key"),
    Case(
        name="in_order", axes=rotary_axes((3,), 9, 4, 4, 64, 32), scalars=_IN_ORDER, why="no positions: token by token"
    ),
    Case(
        name="fewer_than_places",
        axes=rotary_axes((2, 2), 5, 2, 1, 32, 16, 64),
        scalars=_IN_ORDER | _PAIRS,
        why="a table for longer contexts, and two axes of a batch",
    ),
    Case(name="neox", axes=rotary_axes((2,), 6, 8, 8, 96, 12, 33), why="GPT-NeoX 20B: 24 of 96 elements are turned"),
    Case(
        name="gptj",
        axes=rotary_axes((1,), 5, 4, 4, 256, 32, 33),
        scalars=_PAIRS,
        why="GPT-J 6B: 64 of 256 elements, pairs side by side",
    ),
    Case(name="odd_rest", axes=rotary_axes((3,), 5, 2, 1, 27, 8), why="an odd number of elements stays as it is"),
    Case(name="odd_rest_pairs", axes=rotary_axes((3,), 5, 2, 1, 27, 8), scalars=_PAIRS, why="the same, pair by pair"),
    Case(name="many_heads", axes=rotary_axes((2,), 3, 71, 1, 64, 32, 9), why="Falcon 7B: 71 heads and one of keys"),
    Case(name="no_keys", axes=rotary_axes((2,), 5, 3, 0, 16, 8), why="queries alone"),
    Case(name="no_token", axes=rotary_axes((2,), 0, 3, 1, 16, 8), why="nothing to do"),
    Case(name="large", axes=rotary_axes((1,), 5, 2, 2, 40, 20), distribution="large", why="products that cancel"),
    Case(
        name="special",
        axes=rotary_axes((1,), 6, 3, 2, 34, 15),
        distribution="special",
        why="NaN and infinity stay in their pair; the rest is copied bit by bit",
    ),
    Case(
        name="sliced",
        axes=rotary_axes((2,), 6, 4, 2, 32, 16),
        layout="sliced",
        why="heads inside a wider tensor, as q, k and v of one product",
    ),
    Case(
        name="transposed",
        axes=rotary_axes((2,), 6, 4, 2, 32, 16),
        layout="transposed",
        scalars=_PAIRS,
        why="heads innermost",
    ),
    Case(
        name="misaligned",
        axes=rotary_axes((2,), 6, 4, 2, 64, 32),
        layout="misaligned",
        why="sizes invite vector loads, the address forbids them",
    ),
)

WORKLOADS = (
    Workload(
        name="llama32_1b_prompt",
        axes=rotary_axes((1,), 1024, 32, 8, 64, 32),
        source="Llama 3.2 1B: 32 query and 8 key heads of 64, a prompt of 1024",
        scale="laptop",
        scalars=_IN_ORDER,
    ),
    Workload(
        name="pythia_410m",
        axes=rotary_axes((4,), 512, 16, 16, 64, 8, 2048),
        source="Pythia 410M: a quarter of 16 heads of 64 is turned, 4 sequences of 512",
        scale="laptop",
    ),
    Workload(
        name="gptj_6b_prompt",
        axes=rotary_axes((1,), 512, 16, 16, 256, 32, 2048),
        source="GPT-J 6B: 64 of 256 elements in pairs, a prompt of 512",
        scale="laptop",
        scalars=_PAIRS,
    ),
    Workload(
        name="llama3_8b",
        axes=rotary_axes((2,), 8192, 32, 8, 128, 64),
        source="Llama 3 8B: 32 query and 8 key heads of 128, 2 contexts of 8192",
        scalars=_IN_ORDER,
    ),
    Workload(
        name="llama3_8b_packed",
        axes=rotary_axes((), 16384, 32, 8, 128, 64, 8192),
        source="Llama 3 8B: a packed batch of 16384 tokens, each with its position",
    ),
    Workload(
        name="llama3_8b_decode",
        axes=rotary_axes((), 256, 32, 8, 128, 64, 8192),
        source="Llama 3 8B: 256 sequences decoding: launch-bound",
    ),
    Workload(
        name="gpt_neox_20b",
        axes=rotary_axes((8,), 2048, 64, 64, 96, 12, 2048),
        source="GPT-NeoX 20B: 24 of 96 elements, 64 heads, 8 contexts of 2048",
        scalars=_IN_ORDER,
    ),
    Workload(
        name="gptj_6b",
        axes=rotary_axes((8,), 2048, 16, 16, 256, 32, 2048),
        source="GPT-J 6B: 64 of 256 elements in pairs, 8 contexts of 2048",
        scalars=_PAIRS,
    ),
)


def _classes(scale: str, *shapes: tuple[dict[str, int | tuple[int, ...]], bool]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{shape['tokens']}x{shape['heads']}x{shape['dim']}" + "_pairs" * pairs,
            axes=shape,
            source="shape class: whole vectors, odd sizes, few tokens, a part of each head",
            scale=scale,
            scalars={"interleaved": pairs},
        )
        for shape, pairs in shapes
    )


GRID = (
    *_classes(
        "gpu",
        (rotary_axes((), 8192, 32, 8, 128, 64), False),
        (rotary_axes((), 8192, 32, 8, 128, 64), True),
        (rotary_axes((), 64, 32, 8, 128, 64, 8192), False),
        (rotary_axes((), 4001, 33, 3, 80, 37), False),
        (rotary_axes((), 8192, 32, 32, 96, 12), False),
    ),
    *_classes(
        "laptop",
        (rotary_axes((), 512, 16, 4, 64, 32), False),
        (rotary_axes((), 512, 16, 4, 64, 32), True),
        (rotary_axes((), 333, 9, 3, 70, 17), False),
    ),
)
