"""Mistakes that once passed, planted for each family where they apply: verification has to find every one.

Each is a file for an operator of the package, as a user adds one. The right file of each operator, from which the
others are made by one change, has to pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.core.evidence.verdict import FAILURES, Verdict
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK

EFFORT = replace(QUICK, own=True, elements=1 << 12, repeats=4, shrink_s=0.0, seconds=60.0)
"""Brief, and not ended by a clock. Blocks of -inf and low values are among the first ten of a default verification."""
OF_VALUES = replace(EFFORT, hidden=16, least_hidden=16)

PLAN = "{x} = {x}.as_strided({x}.shape, KEPT.setdefault(tuple({x}.shape), {x}.stride()))"
SCRATCH = "kept = KEPT.setdefault(tuple({x}.shape), torch.empty({x}.shape)); kept.copy_({x}); {x} = kept"
"""A plan that is kept by shape and used for other strides; scratch memory that all callers share."""

SOFTMAX = """
    x = x.float()
    m, total = torch.full(x.shape[:-1] + (1,), START), torch.zeros(x.shape[:-1] + (1,))
    for first in range(0, x.shape[-1], 64):
        block = x[..., first : first + 64]
        new = torch.maximum(m, block.amax(-1, keepdim=True))
        SHIFT
        total = total * (m - shift).exp() + (block - shift).exp().sum(-1, keepdim=True)
        m = new
    EMPTY
"""
BLOCKS = {"START": "-torch.inf", "SHIFT": "shift = new.masked_fill(new == -torch.inf, 0)"}
NONE = {"EMPTY": "total = total.masked_fill(m == -torch.inf, torch.nan)"}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One operator of a family: its parameters, its body, the words that stand in it, and the changes that are wrong.
    `x` is the input that plans and scratch memory are kept of.
    """

    operator: str
    parameters: str
    body: str
    words: dict[str, str]
    wrong: dict[str, dict[str, str]]
    x: str = "x"
    head: str = ""


def shifted(ending: str) -> dict[str, dict[str, str]]:
    """What goes wrong with a running maximum."""
    return {
        "block_of_no_value": {"SHIFT": "shift = new"},
        "starts_at_ten_thousand": {"START": "-1e4"},
        **({"row_of_no_value_is_0": {"EMPTY": ""}} if ending == "softmax" else {}),
    }


FAMILIES = {
    "elementwise": Family(operator="vector_add", parameters="x, y", body="    return x + y\n", words={}, wrong={}),
    "rows": Family(
        operator="softmax",
        parameters="x",
        body=SOFTMAX + "    return ((x - m.masked_fill(m == -torch.inf, 0)).exp() / total).nan_to_num(LEFT)\n",
        words={**BLOCKS, **NONE, "nan_to_num(LEFT)": "to(torch.float32)"},
        wrong={**shifted("softmax"), "row_of_no_value_is_0": {"nan_to_num(LEFT)": "nan_to_num(0.0)"}},
    ),
    "rows_logarithm": Family(
        operator="log_softmax",
        parameters="x",
        body=SOFTMAX + "    return x - m.masked_fill(m == -torch.inf, 0) - total.log()\n",
        words={**BLOCKS, **NONE},
        wrong=shifted("log_softmax"),
    ),
    "norm": Family(
        operator="rmsnorm",
        parameters="x, weight, eps",
        body="    x = x.float()\n    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight\n",
        words={},
        wrong={},
    ),
    "gemm": Family(
        operator="matmul", parameters="a, b, precision", body="    return a @ b\n", words={}, wrong={}, x="a"
    ),
    "loss": Family(
        operator="cross_entropy",
        parameters="x, target, ignore_index, label_smoothing",
        body="    top = x.float().amax(-1)\n    TOP\n    rest = (x - top[..., None]).exp().sum(-1).log()\n"
        "    loss = top - x.gather(-1, target.clamp(0, x.shape[-1] - 1)[..., None].long())[..., 0] + rest\n"
        "    loss = loss.masked_fill((target < 0) | (target >= x.shape[-1]), torch.nan)\n"
        "    return loss.masked_fill(target == ignore_index, 0)\n",
        words={"TOP": ""},
        wrong={"starts_at_ten_thousand": {"TOP": "top = top.clamp(min=-1e4)"}},
        head='SUPPORTS = {"plain": "label_smoothing == 0"}\n',
    ),
    "random": Family(
        operator="dropout",
        parameters="x, p, seed",
        body="    index = torch.arange(x.numel()) WRAP\n"
        "    dropped = (words(index, seed) < threshold(p)).view(x.shape)\n"
        "    return (x / (1 - p or 1.0)).masked_fill(dropped, 0)\n",
        words={" WRAP": ""},
        wrong={"mask_repeats": {" WRAP": " % 262144"}},
        head="from opforge.core.philox import threshold, words\n",
    ),
}


MAXIMA = ("rows", "rows_logarithm")


def kinds(family: str) -> tuple[str, ...]:
    """The mistakes of a family; "right" comes first and is none."""
    return ("right", "plan_by_shape", "shared_scratch", *FAMILIES[family].wrong)


def source(family: str, kind: str) -> str:
    """The file of one of them."""
    one = FAMILIES[family]
    body = one.body
    for word, text in {**one.words, **one.wrong.get(kind, {})}.items():
        body = body.replace(word, text)
    kept = {"plan_by_shape": PLAN, "shared_scratch": SCRATCH}.get(kind, "").format(x=one.x)
    return (
        f'"""{kind} in {one.operator}."""\n\nimport torch\n{one.head}\nNOT_COMPILED = "it is planted"\n'
        f'LAYOUTS = ("contiguous", "rows", "strided")\nKEPT = {{}}\n\n\n'
        f"def run({one.parameters}):\n    {kept or 'pass'}\n{body}"
    )


def hunt(folder: Path, family: str, wanted: Sequence[str]) -> Iterator[tuple[str, Verdict]]:
    """Each kind with its verdict."""
    operator = FAMILIES[family].operator
    place = folder / operator
    place.mkdir(parents=True)
    for kind in wanted:
        (place / f"torch_planted_{kind}.py").write_text(source(family, kind), encoding="utf-8")
    registry = load([folder])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator(operator), host=host, device="cpu")
        try:
            for kind in wanted:
                implementation = registry.implementation(operator, f"torch_planted_{kind}")
                yield kind, verify(bench, implementation, "float32", effort=OF_VALUES if family in MAXIMA else EFFORT)
        finally:
            bench.close()


def was_missed(kind: str, verdict: Verdict) -> bool:
    """Whether a mistake passed, or the right file did not."""
    return isinstance(verdict, FAILURES) == (kind == "right")
