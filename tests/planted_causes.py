"""Mistakes as functions that write wrong answers, each with words that its cause must hold. Memory is that of a
verification: guards, poison and all. tests/test_planted_causes.py judges them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from opforge.core.definition.operator import Case, Operator, TensorSpec, Tolerance

F = torch.nn.functional


@dataclasses.dataclass(frozen=True)
class Planted:
    """`kernel(inputs…, outputs…)` writes; `words` are of its cause, any of them. `values` changes the inputs first."""

    what: str
    operator: Operator
    kernel: Callable[..., Any]
    words: tuple[str, ...]
    values: Callable[..., Any] | None = None
    rows: int = 24
    cols: int = 40
    dtype: str = "float32"


def operator(name: str, reference: Any, inputs: tuple[str, ...] = ("x",), out: str = "T", **more: Any) -> Operator:
    shapes = {"w": "cols", "b": "cols", "m": "cols out"}
    return Operator(
        name=name,
        about="",
        inputs=tuple(TensorSpec(name=one, shape=shapes.get(one, "rows cols")) for one in inputs),
        outputs=(TensorSpec(name="y", shape=more.pop("shape", "rows cols"), dtype=out),),
        reference=reference,
        flops="rows * cols",
        tolerance=Tolerance(factor=20.0, **more),
        cases=(Case(name="plain", axes={"rows": 24, "cols": 40}, why="plain"),),
    )


def rms(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def normed(x: Any) -> Any:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)


def unit(x: Any) -> Any:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-20)


def step(x: Any) -> Any:
    return torch.round(x * 12.7).to(torch.int8)


ADD = operator("add", lambda x, z: x + z, ("x", "z"))
SOFTMAX = operator("softmax", lambda x: torch.softmax(x, -1))
RMS = operator("rms", rms, ("x", "w"))
NORM = operator("norm", normed, magnitude=lambda inputs, outputs, scalars: {"y": outputs["y"].abs() + 4})
UNIT = operator("unit", unit)
SIGN = operator("sign", torch.sign)
SQUARE = operator("square", lambda x: x.square())
INTS = operator("ints", step, out="int8")
SUM = operator("total", lambda x: x.sum(-1), shape="rows", magnitude=lambda i, o, s: {"y": i["x"].abs().sum(-1)})
SWAP = operator("swap", lambda x: x.t().contiguous(), shape="cols rows")


def writes(compute: Any) -> Any:
    """A kernel that stores all of what is computed."""

    def kernel(*tensors: Any) -> None:
        tensors[-1].copy_(compute(*tensors[:-1]))

    return kernel


def part(compute: Any, keep: Any) -> Any:
    """One that stores `keep` of it."""

    def kernel(*tensors: Any) -> None:
        tensors[-1][keep] = compute(*tensors[:-1])[keep].to(tensors[-1].dtype)

    return kernel


def past(x: Any, extra: int) -> Any:
    """Elements of a contiguous input and some behind its end."""
    return x.as_strided((x.numel() + extra,), (1,), x.storage_offset())


def flat_from(x: Any, first: int) -> Any:
    return past(x, first)[first:].view(x.shape)


def with_zeros(x: Any, *rest: Any) -> None:
    x[::3, ::5] = 0


def zero_rows(x: Any, *rest: Any) -> None:
    x[4] = 0


def masked_row(x: Any, *rest: Any) -> None:
    x[5] = -torch.inf


def large_rows(x: Any, *rest: Any) -> None:
    x[3] = x[3] * 40 + 100


def huge_rows(x: Any, *rest: Any) -> None:
    x[2, 7] = 1e20


def infinite(x: Any, *rest: Any) -> None:
    x[6, 3] = torch.inf


def naive_softmax(x: Any) -> Any:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def one_wrong(*tensors: Any) -> None:
    tensors[-1].copy_(ADD.reference(*tensors[:-1]))
    tensors[-1][11, 7] += 3


def one_step(*tensors: Any) -> None:
    tensors[-1].copy_(step(tensors[0]))
    tensors[-1][11, 7] += 1


def one_unwritten(*tensors: Any) -> None:
    kept = tensors[-1][11, 7].clone()
    tensors[-1].copy_(ADD.reference(*tensors[:-1]))
    tensors[-1][11, 7] = kept


def shared_unwritten(*tensors: Any) -> None:
    """What the CUDA emulator fills shared memory with, where a barrier is missing."""
    tensors[-1].copy_(ADD.reference(*tensors[:-1]))
    hole = torch.full((3, 40), -1, dtype=torch.int32).view(torch.float32)
    tensors[-1][5:8] = hole + tensors[0][5:8]


NEVER, OUTSIDE = ("never written",), ("past its end",)
PLANTED = (
    Planted("nothing is stored", ADD, lambda *t: None, NEVER),
    Planted(
        "the last columns are not", ADD, part(ADD.reference, (slice(None), slice(0, 32))), (*NEVER, "columns from 32")
    ),
    Planted("the last rows are not", RMS, part(rms, slice(0, 20)), NEVER),
    Planted("every second row is not", SOFTMAX, part(SOFTMAX.reference, slice(0, None, 2)), NEVER),
    Planted("one element is not", ADD, one_unwritten, NEVER),
    Planted("the last columns of a quantiser", INTS, part(step, (slice(None), slice(0, 32))), NEVER),
    Planted("a tail in bfloat16", ADD, part(ADD.reference, (slice(None), slice(0, 39))), NEVER, dtype="bfloat16"),
    Planted(
        "rows begin one element late",
        SQUARE,
        writes(lambda x: flat_from(x, 8).square()),
        ("neighbour", "past its end", "offset", "without a pattern"),
    ),
    Planted(
        "a vector past the end",
        SUM,
        writes(lambda x: x.sum(-1) + past(x, 4)[-4:].sum() * (torch.arange(24) == 23)),
        OUTSIDE,
    ),
    Planted("a mask wider than the row", ADD, writes(lambda x, z: F.pad(x, (0, 0)) + z + 0 * past(x, 1)[-1]), OUTSIDE),
    Planted("the weight past its end", RMS, writes(lambda x, w: rms(x, past(w, 1)[1:])), ("past its end", "offset")),
    Planted("a missing barrier", ADD, shared_unwritten, ("__syncthreads",)),
    Planted("x over its size", SIGN, writes(lambda x: x / x.abs()), ("0 / 0",), with_zeros),
    Planted("x over its size, float16", SIGN, writes(lambda x: x / x.abs()), ("0 / 0",), with_zeros, dtype="float16"),
    Planted("a norm of zeros", UNIT, writes(lambda x: x / x.norm(dim=-1, keepdim=True)), ("0 / 0",), zero_rows),
    Planted("softmax without its maximum", SOFTMAX, writes(naive_softmax), ("exp without the shift",), large_rows),
    Planted(
        "squares that leave float32",
        UNIT,
        writes(lambda x: x * (1 / x.square().sum(-1, keepdim=True).sqrt())),
        ("square",),
        huge_rows,
    ),
    Planted("inf * 0", SIGN, writes(lambda x: x * (1 / x.abs())), ("inf",), infinite),
    Planted(
        "inf * 0 in float16",
        SQUARE,
        writes(lambda x: (x * 6e4) * (x * 0.0) + x * x),
        ("0 * inf",),
        lambda x: x.mul_(3),
        dtype="float16",
    ),
    Planted(
        "inf - inf",
        SQUARE,
        writes(lambda x: x.exp().square().square() - x.exp().square().square() + x * x),
        ("inf - inf",),
        large_rows,
    ),
    Planted(
        "an overflow that stays",
        SQUARE,
        writes(lambda x: x.exp().clamp(min=3e38) * 4 * (x > 30) + x * x),
        ("overflows",),
        large_rows,
    ),
    Planted("zeros for all", ADD, lambda *t: t[-1].zero_(), ("every wrong element is 0",)),
    Planted(
        "zeros for the tail", ADD, writes(lambda x, z: (x + z) * (torch.arange(40) < 32)), ("mask of the last block",)
    ),
    Planted("a scale twice", SOFTMAX, writes(lambda x: torch.softmax(x, -1) * 0.125), ("constant factor of 0.125",)),
    Planted("a term forgotten", ADD, writes(lambda x, z: x + z - 0.75), ("constant -0.75",)),
    Planted(
        "a sum over too few",
        RMS,
        writes(lambda x, w: x * torch.rsqrt(x[:, :8].square().mean(-1, keepdim=True)) * w),
        ("factor of its own",),
    ),
    Planted("another neighbour", ADD, writes(lambda x, z: (x + z).roll(1, -1)), ("offset of one",)),
    Planted("swapped axes", SQUARE, writes(lambda x: x.square().t().reshape(x.shape)), ("swapped", "transpose")),
    Planted("not transposed", SWAP, writes(lambda x: x.reshape(40, 24)), ("swapped", "transpose", "input x")),
    Planted(
        "every fourth column",
        ADD,
        writes(lambda x, z: x + z + (torch.arange(40) % 4 == 0) * x.abs()),
        ("every 4th column",),
    ),
    Planted("shuffled rows", ADD, writes(lambda x, z: (x + z)[torch.randperm(24)]), ("wrong places",)),
    Planted(
        "bfloat16 on the way",
        SOFTMAX,
        writes(lambda x: torch.softmax(x.bfloat16(), -1).float()),
        ("too low a precision",),
    ),
    Planted("float16 sums", NORM, writes(lambda x: normed(x.half()).float()), ("too low a precision",)),
    Planted("an input copied", SQUARE, writes(lambda x: x), ("is the input x",)),
    Planted("truncated", INTS, writes(lambda x: (x * 12.7).to(torch.int8)), ("truncated",)),
    Planted("floored", INTS, writes(lambda x: torch.floor(x * 12.7).to(torch.int8)), ("floored",)),
    Planted("rounded up", INTS, writes(lambda x: torch.ceil(x * 12.7).to(torch.int8)), ("rounded up",)),
    Planted(
        "rounded twice",
        INTS,
        writes(lambda x: torch.round((x * 12.7).bfloat16().float()).to(torch.int8)),
        ("rounded twice", "too few"),
    ),
    Planted("one step of one element", INTS, one_step, ("too little",)),
    Planted("one element", ADD, one_wrong, ("too little",)),
    Planted(
        "NaN dropped",
        SOFTMAX,
        writes(lambda x: torch.softmax(x.nan_to_num(0.0), -1)),
        ("NaN is lost",),
        lambda x: x[4].fill_(torch.nan),
    ),
    Planted(
        "a masked row as zeros",
        SOFTMAX,
        writes(lambda x: torch.softmax(x, -1).nan_to_num(0.0)),
        ("NaN is lost",),
        masked_row,
    ),
)
