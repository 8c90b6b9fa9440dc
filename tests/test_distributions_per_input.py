"""A case's distribution may be a word for each input."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from opforge.core.definition.operator import Case
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.registry.call_checks import check_calls
from opforge.runner import allocate, fill


def drawn(distribution: str) -> dict[str, torch.Tensor]:
    """The inputs of silu_mul, gate and up, 8 x 33."""
    operator = load([]).operator("silu_mul")
    case = Case(name="mixed", axes={"shape": (8, 33)}, why="a test", distribution=distribution)
    check_calls(dataclasses.replace(operator, cases=(case,)))
    arena = allocate(operator, case, "float32")
    fill(arena, operator, case, 7)
    return arena.tensors("input")


def test_each_input_has_its_own_word() -> None:
    """-inf in one log-sum-exp beside ordinary values in another could not be asked."""
    inputs = drawn("masked ones")
    assert torch.isneginf(inputs["gate"]).any() and not torch.isneginf(inputs["gate"]).all()
    assert torch.equal(inputs["up"], torch.ones(8, 33))


def test_masked_inputs_are_masked_at_the_same_places() -> None:
    """Two rows without a key at once: -inf minus -inf is where a merge of two parts goes wrong."""
    inputs = drawn("masked")
    both = torch.isneginf(inputs["gate"]) & torch.isneginf(inputs["up"])
    assert int(both.sum()) >= 8 * 33 // 3
    assert torch.isfinite(inputs["gate"]).any()


@pytest.mark.parametrize("words", ["masked ones normal", "twins normal", "masked tpyo"])
def test_other_words_are_refused(words: str) -> None:
    """The error says how many there must be, or which word is meant."""
    with pytest.raises(UsageError, match=r"one for each of gate, up|No distribution"):
        drawn(words)
