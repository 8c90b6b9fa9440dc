"""What is said of a mistake's cause is right, or nothing certain is said."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from opforge.core.evidence.verdict import Mismatch
from opforge.runner import allocate, fill
from opforge.verify import consult
from opforge.verify.cases.case_cache import PreparedCase
from opforge.verify.explain.cause import from_widths
from opforge.verify.judging.run_case import judge
from planted_causes import PLANTED

UNCERTAIN = ("without a pattern", "too little to tell", "too few to tell")


def cause_of(planted, seed=7):
    """The cause, told of memory as a verification has it."""
    axes = {"rows": planted.rows, "cols": planted.cols}
    case = dataclasses.replace(planted.operator.cases[0], axes=axes, seed=seed)
    arena = allocate(planted.operator, case, planted.dtype)
    try:
        arena.poison(seed)
        fill(arena, planted.operator, case, seed)
        inputs = arena.tensors("input")
        if planted.values is not None:
            planted.values(*inputs.values())
        truth = consult(planted.operator, case, planted.dtype, inputs)
        prepared = PreparedCase(
            case=case,
            dtype=planted.dtype,
            arena=arena,
            truth=truth,
            pristine=arena.bytes().clone(),
            place=torch.device("cpu"),
        )
        torch.manual_seed(seed)
        planted.kernel(*inputs.values(), *arena.tensors("output").values())
        verdict = judge(prepared, planted.operator, "")
    finally:
        arena.close()
    assert isinstance(verdict, Mismatch), verdict
    return verdict.cause


def test_causes_of_planted_mistakes():
    """Forty-two mistakes: at least nine of ten are named, and of no other is anything certain said."""
    told = {planted.what: cause_of(planted) for planted in PLANTED}
    others = {one.what: told[one.what] for one in PLANTED if not any(words in told[one.what] for words in one.words)}
    assert len(PLANTED) >= 40 and len(others) <= len(PLANTED) // 10, others
    assert all(any(words in cause for words in UNCERTAIN) for cause in others.values()), others


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 21))
def test_causes_on_other_values(seed):
    told = {planted.what: cause_of(planted, seed) for planted in PLANTED}
    others = {one.what: told[one.what] for one in PLANTED if not any(words in told[one.what] for words in one.words)}
    assert len(others) <= len(PLANTED) // 10, others
    assert all(any(words in cause for words in UNCERTAIN) for cause in others.values()), others


@pytest.mark.parametrize(
    ("cause", "right", "wrong", "block"),
    [
        ("too low a precision", [64, 128, 1], [33, 129], "multiple of 64"),
        ("each row is wrong by a factor of its own", [16, 48], [7], "multiple of 16"),
        ("too low a precision", [64], [33], None),
        ("too low a precision", [64, 65], [33], None),
        ("every wrong element is 0", [64, 128], [33], None),
    ],
)
def test_padding_that_enters_a_statistic_is_told_by_the_widths(cause, right, wrong, block):
    """Errors of a variance wherever the width fills no block were called a low precision."""
    words = from_widths(cause, right, wrong)
    assert (words is None) if block is None else (block in words and "padding" in words)
