"""Factors that are rounded where a sum is so long that its own rounding may hide it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opforge.core.evidence.verdict import Checked, Mismatch
from opforge.registry import load
from opforge.runner import InProcess
from opforge.verify import CaseCache
from opforge.verify.judging import rounded_factors
from opforge.verify.judging.run_case import judge

# the long case is prepared once
pytestmark = pytest.mark.xdist_group("rounded factors")
K = 28672


def _rounded(x, digits):
    share, exponent = torch.frexp(x)
    return torch.ldexp((share * 2.0**digits).round() * 2.0**-digits, exponent)


def _in_order(a, b):
    y = torch.zeros(a.shape[0], b.shape[1])
    for at in range(a.shape[1]):
        y += a[:, at, None] * b[at]
    return y


def _blocks(a, b, size, product):
    y = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], size):
        y = y + product(a[:, start : start + size], b[start : start + size])
    return y


def _pairwise(a, b):
    terms = a[:, :, None] * b
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        terms = torch.cat([terms[:, :half] + terms[:, half : 2 * half], terms[:, 2 * half :]], dim=1)
    return terms[:, 0]


def _lanes(a, b):
    return sum((_in_order(a[:, lane::32], b[lane::32]) for lane in range(32)), torch.zeros(a.shape[0], b.shape[1]))


HONEST = {
    "one after another": _in_order,
    "from the end": lambda a, b: _in_order(a.flip(1), b.flip(0)),
    "by magnitude of the first row": lambda a, b: (lambda order: _in_order(a[:, order], b[order]))(
        a[0].abs().argsort()
    ),
    "blocks of 32": lambda a, b: _blocks(a, b, 32, torch.matmul),
    "blocks of 1024, each in order": lambda a, b: _blocks(a, b, 1024, _in_order),
    "pairs": _pairwise,
    "32 lanes": _lanes,
    "a library": torch.matmul,
    "in float64": lambda a, b: (a.double() @ b.double()).float(),
}
ROUNDED = {
    f"{digits} digits, {order}": (digits, product)
    for digits in (16, 17)
    for order, product in (("one after another", _in_order), ("a library", torch.matmul))
    if (digits, order) != (17, "one after another")
}


class _Worker:
    """A worker in this process: it computes with one product."""

    def __init__(self, arena, product):
        self.arena, self.product = arena, product

    def request(self, question, *rest):
        found = self.arena.tensors("input")
        self.arena.tensor("c").copy_(self.product(found["a"].clone(), found["b"].clone()))


@pytest.fixture(scope="module")
def long_case():
    registry = load([Path(__file__).parent / "redteam" / "home"])
    operator = registry.operator("matmul")
    bench = CaseCache(registry=registry, operator=operator, host=InProcess(), device="cpu")
    (case,) = rounded_factors.long_products(operator, "float32")
    assert case.axes == {"m": 16, "n": 16, "k": K}
    yield bench, bench.prepare(case, "float32")
    bench.close()


SLOW = ("from the end", "by magnitude of the first row", "blocks of 1024, each in order", "32 lanes")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.campaign] if name in SLOW else []) for name in (*HONEST, *ROUNDED)],
)
def test_factors_of_16_digits_are_found_and_no_order_of_summation_is(long_case, name):
    """They stood at 0.55 of the bound, and at 0.94 of what all elements together may be off."""
    bench, prepared = long_case
    digits, product = ROUNDED.get(name, (0, HONEST.get(name)))
    kernel = product if not digits else lambda a, b: product(_rounded(a, digits), _rounded(b, digits))
    prepared.reset()
    worker = _Worker(prepared.arena, kernel)
    worker.request(None)
    first = judge(prepared, bench.operator, "none")
    assert isinstance(first, Checked)
    found = rounded_factors._asked_again(bench, worker, 1, prepared, first)
    assert isinstance(found, Mismatch) == bool(digits)
    assert found is None or "its factors are rounded" in found.cause
