"""Outputs that are rounded: at a tie either neighbour is right, elsewhere one step is wrong, and two always are."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from opforge.core.definition.call_form import formed
from opforge.core.definition.operator import Case, Operator, TensorSpec, Tolerance
from opforge.registry import load
from opforge.runner import allocate, fill
from opforge.verify import compare, consult
from quantisers import QUANTISERS, Quantiser

KINDS = ("normal", "integers", "uniform", "sparse", "skewed", "ones", "zeros", "twins", "float16_range")
DTYPES = ("float32", "float16", "bfloat16")


def drawn(quantiser: Quantiser, kind: str, dtype: str, seed: int):
    """Inputs of one distribution, and what the oracle expects."""
    case = dataclasses.replace(quantiser.operator.cases[0], distribution=kind, seed=seed)
    arena = allocate(quantiser.operator, case, dtype)
    try:
        fill(arena, quantiser.operator, case, seed)
        inputs = {name: tensor.clone() for name, tensor in arena.tensors("input").items()}
    finally:
        arena.close()
    return inputs, consult(quantiser.operator, case, dtype, inputs)


def agree(outputs, truth) -> bool:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return all(compare(one, e).agrees for one, e in zip(outputs, truth.expectations, strict=True))


def judged(quantiser: Quantiser, draws: int, first: int = 0):
    """Names of the honest kernels that were refused, and of the planted ones, how often each was found."""
    refused, found = [], dict.fromkeys(quantiser.planted, 0)
    kinds = zip(itertools.cycle(KINDS), itertools.cycle((*DTYPES, "float32")), strict=False)
    for seed, (kind, dtype) in zip(range(first, first + draws), kinds, strict=False):
        inputs, truth = drawn(quantiser, kind, dtype, seed)
        refused += [
            f"{name}, {kind}, {dtype}, {seed}"
            for name, run in quantiser.honest.items()
            if not agree(run(*inputs.values()), truth)
        ]
        if kind == "normal":
            for name, run in quantiser.planted.items():
                found[name] += not agree(run(*inputs.values()), truth)
    return refused, found


@pytest.mark.parametrize("quantiser", QUANTISERS, ids=lambda quantiser: quantiser.operator.name)
def test_an_honest_quantiser_is_right_whatever_the_draw(quantiser):
    """The reference's own lines in float32 were Mismatch, Pass, Mismatch. What is planted is found at once."""
    refused, found = judged(quantiser, 3)
    assert refused == []
    assert set(found.values()) == {1}, found


@pytest.mark.campaign
@pytest.mark.parametrize("quantiser", QUANTISERS, ids=lambda quantiser: quantiser.operator.name)
def test_a_thousand_draws_refuse_none(quantiser):
    """A hundred draws of each of ten, each judged in every honest order."""
    refused, found = judged(quantiser, 100, first=1000)
    assert refused == []
    assert set(found.values()) == {12}, found


def halves(**spec):
    """x / 2 by a scale that is computed, as int8: every odd x is a tie."""
    return Operator(
        name="halves",
        about="",
        inputs=(TensorSpec(name="x", shape="n"),),
        outputs=(TensorSpec(name="q", shape="n", dtype="int8", **spec),),
        reference=lambda x: torch.round(x * 0.5 + 0.25 - 0.25).to(torch.int8),
        flops="n",
        tolerance=Tolerance(),
        cases=(Case(name="six", axes={"n": 6}, why="literal"),),
    )


def wrong_places(operator, x, q):
    case = dataclasses.replace(operator.cases[0], axes={"n": len(x)})
    (expectation,) = consult(operator, case, "float32", {"x": torch.tensor(x)}).expectations
    return compare(torch.tensor(q, dtype=torch.int8), expectation).wrong.tolist()


def test_one_step_is_right_at_a_tie_alone():
    """0.5, 1.5 and 2.5 may go either way; 2 may not, nor what lies a thousandth beside a tie."""
    x = [1.0, 3.0, 5.0, 4.0, 3.002, 1.0]
    assert wrong_places(halves(), x, [0, 2, 2, 2, 2, 0]) == [False] * 6
    assert wrong_places(halves(), x, [1, 1, 3, 2, 2, 1]) == [False] * 6
    assert wrong_places(halves(), x, [2, 3, 1, 3, 1, -1]) == [True] * 6


def test_a_definition_may_ask_for_its_own_step():
    """`rounded_to="exact"`: half to even, and nothing else."""
    assert wrong_places(halves(rounded_to="exact"), [1.0, 3.0, 5.0], [0, 2, 2]) == [False] * 3
    assert wrong_places(halves(rounded_to="exact"), [1.0, 3.0, 5.0], [1, 1, 3]) == [True] * 3


def test_rounding_what_was_given_has_no_ties_to_choose_from():
    """Nothing is computed before it: 0.5 is 0.5 in every arithmetic, and the reference's rule is the definition."""
    operator = dataclasses.replace(halves(), reference=lambda x: torch.round(x).to(torch.int8))
    assert wrong_places(operator, [0.5, 1.5, 2.5], [0, 2, 2]) == [False] * 3
    assert wrong_places(operator, [0.5, 1.5, 2.5], [1, 1, 3]) == [True] * 3


def test_a_part_that_is_written_into_zeros_is_computed():
    """The zeros are known, what is written into a slice of them is not: its ties may go either way."""

    def reference(x):
        whole = torch.zeros_like(x)
        whole[2:] = x[2:] * 0.5 + 0.25 - 0.25
        return torch.round(whole).to(torch.int8)

    operator = dataclasses.replace(halves(), reference=reference)
    assert wrong_places(operator, [9.0, 9.0, 1.0, 3.0], [0, 0, 1, 1]) == [False] * 4
    assert wrong_places(operator, [9.0, 9.0, 1.0, 3.0], [0, 1, 1, 0]) == [False, True, False, True]


@pytest.mark.parametrize(
    ("name", "case", "ignored"),
    [
        ("attention", "one_past", {"causal": False}),
        ("attention_varlen", "causal", {"causal": False}),
        ("dropout", "odd_ranks", {"seed": 8}),
    ],
)
def test_positions_are_counted_alike_in_every_arithmetic(name, case, ignored):
    """Ones that a reference makes and counts are no values that were computed: moved to one side they were noughts,
    every key had one position, and attention that ignored `causal` was right.
    """
    operator = load([]).operator(name)
    case = next(one for one in operator.cases if one.name == case)
    operator = formed(operator, {**case.axes, **case.scalars})
    arena = allocate(operator, case, "float32")
    try:
        fill(arena, operator, case, 5)
        inputs = {key: tensor.clone() for key, tensor in arena.tensors("input").items()}
    finally:
        arena.close()
    truth = consult(operator, case, "float32", inputs)

    def called(**scalars):
        made = operator.reference(*inputs.values(), **operator.scalar_values({**case.scalars, **scalars}))
        return made if isinstance(made, tuple) else (made,)

    assert agree(called(), truth)
    assert not any(compare(one, e).agrees for one, e in zip(called(**ignored), truth.expectations, strict=True))
