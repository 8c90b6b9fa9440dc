"""Cases that no definition lists: options together, one shape in two layouts, more elements than a mask has."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
import torch

from opforge.core.definition.operator import Case
from opforge.definitions.attention import sides
from opforge.registry import load
from opforge.runner import allocate, fill
from opforge.verify import compare, consult
from opforge.verify.cases.declared_cases import crossed, declared, long_axes, long_random
from opforge.verify.cases.hidden import elements


def of(name, implementation):
    registry = load()
    return registry.operator(name), registry.implementation(name, implementation)


def test_options_stand_together_that_no_case_has_together():
    """A softcap that was lost when a window was given as well got a Pass."""
    operator, item = of("cross_entropy", "cpp_twopass")
    (case,) = crossed(operator, item, "float32", operator.cases, random.Random(1))
    assert (
        case.scalars["ignore_index"] == 3 and case.scalars["label_smoothing"] == 0.1 and elements(operator, case) > 99
    )
    operator, item = of("attention", "cpp_blocked")
    plain = [case for case in operator.cases if not {"softcap"} & set(case.scalars)]
    met = set()
    for seed in range(3):
        for case in crossed(operator, item, "float32", plain, random.Random(seed)):
            assert operator.takes(case, "float32")
            met |= set(itertools.combinations(sorted(case.scalars), 2))
    assert {("softcap", "window_left"), ("causal", "softcap"), ("softcap", "window_right")} <= met


def test_a_declared_layout_is_asked_at_a_shape_that_was_contiguous():
    """A plan that is kept by shape alone was right for each shape's first strides."""
    operator, item = of("softmax", "cpp_twopass")
    item = dataclasses.replace(item, layouts=("contiguous", "rows"))
    plain = Case(name="plain", axes={"lead": (7,), "cols": 65}, why="")
    other = Case(name="other", axes={"lead": (3,), "cols": 9}, why="", layout="sliced")
    (case,) = declared(operator, item, [plain, other], "float32")
    assert (case.axes, case.layout) == (plain.axes, "sliced")
    assert not list(declared(operator, item, [plain, dataclasses.replace(plain, layout="sliced")], "float32"))


@pytest.mark.parametrize(
    "axis", ["keys", *(pytest.param(axis, marks=pytest.mark.campaign) for axis in ("queries", "group"))]
)
def test_each_axis_of_attentions_mask_is_asked_beyond_ten_bits(axis, monkeypatch):
    """Rows, keys and heads have counters of their own; a mask that begins again along one is found in its own case."""
    operator, item = of("attention", "torch_definition")
    cases = {case.name: case for case in long_axes(operator, item, "float32", operator.cases)}
    case = dataclasses.replace(cases[f"long_axis_{axis}"], seed=5)
    assert case.axes[axis] == 4400 and case.scalars["dropout"] and math.prod(case.axes.values()) < 400_000, case
    arena = allocate(operator, case, "float32")
    fill(arena, operator, case, 5)
    inputs = {name: tensor.clone() for name, tensor in arena.tensors("input").items()}
    arena.close()
    expectation = consult(operator, case, "float32", inputs).expectations[0]
    assert compare(expectation.expected.float(), expectation).agrees
    kept, place = sides.kept_of, {"group": 1, "queries": 2, "keys": 3}[axis]

    def begins_again(*where):
        return kept(*(value % 1024 if number == place else value for number, value in enumerate(where)))

    with monkeypatch.context() as patched:
        patched.setattr(sides, "kept_of", begins_again)
        wrong = consult(operator, case, "float32", inputs).expectations[0].expected.float()
    assert not compare(wrong, expectation).agrees


@pytest.mark.campaign
def test_a_mask_that_repeats_itself_is_found():
    """After 262,144 elements: no case had as many."""
    operator, item = of(
        "dropout", "cpp_flat" if "cpp_flat" in load().implementation_names("dropout") else "torch_eager"
    )
    (case,) = long_random(operator, item, "float32", operator.cases)
    case = dataclasses.replace(case, seed=5)
    arena = allocate(operator, case, "float32")
    fill(arena, operator, case, 5)
    x = arena.tensor("x").clone()
    arena.close()
    (expectation, *_) = consult(operator, case, "float32", {"x": x}).expectations
    right = expectation.expected.float()
    assert right.numel() > 2**18 and compare(right, expectation).agrees
    again = right.clone()
    kept = (right[: 2**18] != 0).repeat(2)[: right.numel()]
    again[~kept] = 0
    assert not compare(again, expectation).agrees and torch.equal(again[: 2**18], right[: 2**18])
