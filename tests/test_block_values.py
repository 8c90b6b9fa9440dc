"""Blocks of -inf, NaN and very low values: what kernels that go through a row in blocks get wrong."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from opforge.core.definition.operator import Case
from opforge.registry import load
from opforge.runner import allocate, fill
from opforge.verify import compare, consult
from opforge.verify.cases.extreme_values import withstands
from opforge.verify.cases.hidden import hidden_cases

BLOCK = 64


def online(x, start=-torch.inf, guarded=True):
    """Softmax over blocks of 64 columns, by a running maximum and a running sum."""
    x = x.float()
    top = torch.full((*x.shape[:-1], 1), start)
    total = torch.zeros_like(top)
    for part in x.split(BLOCK, -1):
        higher = torch.maximum(top, part.amax(-1, keepdim=True))
        base = torch.where(higher == -torch.inf, 0.0, higher) if guarded else higher
        total = total * (top - base).exp() + (part - base).exp().sum(-1, keepdim=True)
        top = higher
    return (x - top).exp() / total


PLANTED = {
    "a first block of -inf gives NaN": lambda x: online(x, guarded=False),
    "a maximum that starts at -1e4": lambda x: online(x, start=-1e4),
    "a row of -inf gives 0": lambda x: online(x).where(~(x == -torch.inf).all(-1, keepdim=True), 0.0),
}


def drawn(name, dtype, seed):
    """The truths of the hidden cases that have blocks, as one verification draws them."""
    operator = load().operator(name)
    cases = hidden_cases(operator, dtype, count=24, most_elements=1 << 13, source=random.Random(seed))
    for case in cases:
        if case.distribution not in ("blocks", "low") or "empty" in case.name:
            continue
        arena = allocate(operator, case, dtype)
        fill(arena, operator, case, case.seed)
        inputs = {one: tensor.clone() for one, tensor in arena.tensors("input").items()}
        arena.close()
        truth = consult(operator, case, dtype, inputs)
        if withstands(operator, case, dtype, truth):
            yield inputs, truth, case


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_each_mistake_is_found_in_the_cases_of_one_verification(dtype):
    """All got a Pass. An honest kernel that goes by blocks is right each time."""
    native = getattr(torch, dtype)
    for seed in range(4):
        asked = list(drawn("softmax", dtype, seed))
        assert {case.distribution for _, _, case in asked} == {"blocks", "low"}
        for inputs, truth, case in asked:
            for honest in (online, lambda x: torch.softmax(x.float(), -1)):
                assert compare(honest(inputs["x"]).to(native), truth.expectations[0]).agrees, case
        for what, kernel in PLANTED.items():
            found = [not compare(kernel(i["x"]).to(native), t.expectations[0]).agrees for i, t, _ in asked]
            assert any(found), (what, seed)


@pytest.mark.parametrize("name", ["relu", "transpose", "log_softmax", "vector_add", "gelu"])
def test_values_in_blocks_are_asked_of_whoever_bears_them(name):
    kinds = {case.distribution for _, _, case in drawn(name, "float32", 1)}
    assert kinds == {"blocks", "low"}


def test_a_part_is_what_it_is_said_to_be():
    """64 columns, the whole row, the last 64, all but one, NaN, very low, and a row of normal numbers."""
    operator = load().operator("softmax")
    case = Case(name="b", axes={"lead": (14,), "cols": 160}, why="", distribution="blocks", seed=3)
    arena = allocate(operator, dataclasses.replace(case), "float32")
    fill(arena, operator, case, 3)
    x = arena.tensor("x").clone()
    arena.close()
    counts = sorted((x == -torch.inf).sum(-1).tolist())
    assert counts == [0] * 6 + [64] * 4 + [159] * 2 + [160] * 2
    assert int(x.isnan().all(-1).sum()) == 2 and int((x < -1e29).all(-1).sum()) == 4
