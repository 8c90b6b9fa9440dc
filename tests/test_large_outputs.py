"""Outputs of many elements are bounded and compared a part at a time, with the same verdict and the same numbers."""

import dataclasses
import math
import weakref

import pytest
import torch

from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Checked
from opforge.registry import load
from opforge.runner import allocate, fill
from opforge.verify.cases.case_cache import PreparedCase
from opforge.verify.judging import elements
from opforge.verify.judging.run_case import judge
from opforge.verify.oracle import aside, expectation


@pytest.mark.parametrize("most", [1, 4, 7, 1000])
@pytest.mark.parametrize("shape", [(), (1,), (9,), (0, 3), (3, 0), (2, 3, 5), (3, 1, 4, 2)])
def test_parts_take_every_element_once(shape, most):
    counted = torch.zeros(shape, dtype=torch.int64)
    for part in expectation.parts_of(shape, most):
        assert counted[part].numel() <= most
        counted[part] += 1
    assert bool((counted == 1).all())


def _truth(operator, case, dtype, most, monkeypatch):
    monkeypatch.setattr(expectation, "TOGETHER", most)
    monkeypatch.setattr(elements, "TOGETHER", most)
    arena = allocate(operator, case, dtype)
    try:
        arena.poison(5, 0)
        fill(arena, operator, case, 5)
        return expectation.consult(operator, case, dtype, arena.tensors("input")).expectations
    finally:
        arena.close()


def _equal(one, other):
    return (one is None and other is None) or torch.equal(one.nan_to_num(), other.nan_to_num())


WHOLE = 2**26
FIELDS = ("expected", "bound", "typical", "beyond")


@pytest.mark.parametrize("name", ["bias_add", "softmax", "layernorm_backward", "attention_bias_backward", "mean_var"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bounds_by_parts_are_those_of_the_whole(name, dtype, monkeypatch):
    operator = load([]).operator(name)
    for case in operator.cases[:3]:
        whole = _truth(operator, case, dtype, WHOLE, monkeypatch)
        for one, other in zip(whole, _truth(operator, case, dtype, 500, monkeypatch), strict=True):
            for field in FIELDS:
                assert _equal(getattr(one, field), getattr(other, field)), (case.name, one.output, field)


@pytest.mark.parametrize("name", ["softmax", "layernorm_backward", "attention_bias_backward"])
def test_expectations_that_wait_in_the_hosts_memory_come_back_as_they_were(name, monkeypatch):
    """Three truths of a gradient of 2^30 elements, 26 GB each, left a GPU no room for the kernels to be judged."""
    operator = load([]).operator(name)
    for case in operator.cases[:3]:
        there = _truth(operator, case, "float16", WHOLE, monkeypatch)
        with monkeypatch.context() as patched:
            patched.setattr(expectation, "waits", lambda place, size: True)
            waiting = _truth(operator, case, "float16", 500, monkeypatch)
        assert isinstance(waiting, aside.Waiting) and len(waiting) == len(there)
        for one, other in zip(there, waiting, strict=True):
            assert (one.output, one.dtype, one.groups, one.ties) == (
                other.output,
                other.dtype,
                other.groups,
                other.ties,
            )
            for field in (*FIELDS, "exact", "scores"):
                assert _equal(getattr(one, field), getattr(other, field)), (case.name, one.output, field)


def test_one_expectation_at_a_time_comes_back_to_be_judged(monkeypatch):
    """Those of all outputs together would take as much of a device as if none had waited."""
    operator = load([]).operator("layernorm_backward")
    monkeypatch.setattr(expectation, "waits", lambda place, size: True)
    case = dataclasses.replace(operator.cases[0], seed=5)
    arena = allocate(operator, case, "float32")
    fetched_until_now, most = [], []
    fetch = aside.Waiting.__getitem__

    def fetched(self, at):
        found = fetch(self, at)
        fetched_until_now.append(weakref.ref(found))
        most.append(sum(one() is not None for one in fetched_until_now))
        return found

    try:
        arena.poison(5, 0)
        fill(arena, operator, case, 5)
        truth = expectation.consult(operator, case, "float32", arena.tensors("input"))
        prepared = PreparedCase(
            case=case,
            dtype="float32",
            arena=arena,
            truth=truth,
            pristine=arena.bytes().clone(),
            place=torch.device("cpu"),
        )
        for right in truth.expectations:
            arena.tensor(right.output).copy_(right.expected)
        monkeypatch.setattr(aside.Waiting, "__getitem__", fetched)
        assert isinstance(judge(prepared, operator, ""), Checked)
    finally:
        arena.close()
    assert len(most) == len(operator.outputs) > 1 and max(most) == 1


@pytest.mark.parametrize("wrong", [None, math.nan, math.inf, 3.0])
@pytest.mark.parametrize("place", [(0, 0), (12, 33), (36, 40)])
def test_a_large_output_is_judged_as_a_small_one(wrong, place, monkeypatch):
    operator = load([]).operator("softmax")
    case = Case(name="x", axes={"lead": (37,), "cols": 41}, why="")
    (expected,) = _truth(operator, case, "float16", WHOLE, monkeypatch)
    actual = expected.expected.to(torch.float16)
    if wrong is not None:
        actual[place] = wrong
    whole = elements.compare(actual, expected)
    one = whole.metrics
    monkeypatch.setattr(elements, "TOGETHER", 50)
    parts = elements.compare(actual, expected)
    other = parts.metrics
    assert torch.equal(whole.wrong, parts.wrong)
    assert whole.agrees == parts.agrees == (wrong is None)
    assert parts.noise == pytest.approx(whole.noise, rel=1e-12)
    if wrong is not None:
        assert one.worst_index == other.worst_index == place
    for field in ("max_abs", "mean_abs", "max_rel", "mean_rel", "l2_rel", "max_ulp", "cosine", "sqnr_db", "clip_ratio"):
        assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-12), field
    for field in ("histogram", "elements", "worst_ratio", "worst_expected", "worst_bound"):
        assert getattr(other, field) == getattr(one, field), field
    # those of every 31st element
    assert all(0 <= value <= one.max_abs for value in other.quantiles_abs)
