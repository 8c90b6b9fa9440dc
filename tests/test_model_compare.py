"""Models against each other in turns, and which functions a difference comes from."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from opforge.core.language.errors import UsageError
from opforge.model.agreement import inputs_of
from opforge.model.attribution import attribute, attribute_model, wrong_functions
from opforge.model.compare import compare_model, rounds, twin, variants_of
from opforge.model.fusing import backend, fuse
from opforge.model.patch import patch

pytestmark = pytest.mark.usefixtures("front_door")
NAMES = ("linear", "rms_norm", "swiglu", "softmax", "cross_entropy")


def machine(seed: int, gains: dict[str, float]):
    """A model on a busy machine: 2 % of noise, and one call in ten that is interrupted."""
    drawn = random.Random(seed)

    def seconds_of(some: frozenset[str]) -> float:
        took = (1.0 + sum(gains.get(name, 0.0) for name in some)) * math.exp(drawn.gauss(0, 0.02))
        return took * (1 + drawn.random() if drawn.random() < 0.1 else 1) * 1e-3

    return seconds_of


def test_a_planted_slow_function_is_named_and_noise_is_unsure():
    """Asked a hundred times: 5 % slower is found in 95, and nothing is named where nothing was planted."""
    named = quiet = 0
    for seed in range(100):
        gains = {"swiglu": 0.05, "linear": -0.03}
        found = attribute(NAMES, machine(seed, gains), order=random.Random(seed))
        outcomes = {part.name: part.outcome for part in found.parts}
        named += outcomes["swiglu"] == "SLOWER" and outcomes["rms_norm"] == outcomes["softmax"] == "UNSURE"
        half = found.whole.high - found.whole.seconds + sum(part.high - part.seconds for part in found.parts)
        assert abs(found.rest) <= half
        nothing = attribute(NAMES, machine(1000 + seed, {}), order=random.Random(seed))
        quiet += all(part.outcome == "UNSURE" for part in (*nothing.parts, nothing.whole))
    assert named >= 95
    assert quiet >= 95


def test_parts_that_meet_share_what_they_save():
    """Two functions of which either saves what both save: half each, and no rest."""
    found = attribute(
        ("a", "b"), lambda some: 1.0 - 0.25 * bool(some), rounds=400, confidence=0.5, order=random.Random(0)
    )
    assert found.whole.seconds == pytest.approx(-0.25)
    assert {part.outcome for part in found.parts} == {"FASTER"}
    with pytest.raises(UsageError, match="a function that is replaced"):
        attribute((), lambda some: 1.0)


def test_variants_take_turns():
    """In each round each is called once, in an order that changes."""
    called: list[str] = []
    ticks = itertools.count()
    calls = {name: (lambda name=name: called.append(name)) for name in "abc"}
    samples = rounds(calls, 0.0, lambda: float(next(ticks)), random.Random(0))
    turns = [tuple(called[at : at + 3]) for at in range(0, len(called), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 1
    assert {len(one) for one in samples.values()} == {len(turns)}


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(self.norm(x)))


def test_a_model_and_its_patched_twin_are_compared():
    """Twins share parameters; times, memory and errors are of what ran."""
    torch.manual_seed(0)
    model, x = Layer(), torch.randn(8, 16)
    assert all(one is other for one, other in zip(model.parameters(), twin(model).parameters(), strict=True))
    compared = compare_model(model, x, variants=("eager", "opforge", "liger"), budget_s=0.0)
    assert [(one.phase, one.name) for one in compared.measured] == [
        (phase, name) for phase in ("forward", "training step") for name in ("eager", "opforge")
    ]
    assert "liger" in compared.left_out
    for one in compared.measured:
        assert len(one.samples_s) == 5
        assert one.peak_bytes is not None
        assert one.peak_bytes >= 8 * 16 * 4
        assert 0 < one.error < 1e-5
        assert (one.against is None) is (one.name == "eager")
    assert type(model) is Layer
    with pytest.raises(UsageError, match="Did you mean 'opforge'"):
        variants_of(model, inputs_of(x), ("opforg",))


def test_a_planted_wrong_function_is_named(monkeypatch):
    """The one that is wrong, and no other; and the time of each is asked of real twins."""
    from opforge.ops import functional

    torch.manual_seed(0)
    model, x = Layer(), torch.randn(8, 16)
    assert wrong_functions(model, x) == {}
    assert {part.name for part in attribute_model(model, x, rounds=6).parts} == {"gelu", "layer_norm", "linear"}
    real = functional.FUNCTIONS["gelu"]
    from opforge import ops

    right = ops.gelu

    class Planted:
        operator, why = right.operator, staticmethod(right.why)

        def __call__(self, *tensors, **scalars):
            return right(*tensors, **scalars) * 1.001

    monkeypatch.setitem(vars(ops), "gelu", Planted())
    assert real.why(x).operator == "gelu"
    assert list(wrong_functions(model, x)) == ["gelu"]


class Fusible(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = torch.nn.RMSNorm(16, eps=1e-6), torch.nn.Linear(16, 16)

    def forward(self, x, y):
        total = x + y
        hidden = self.norm(total)
        return torch.nn.functional.silu(self.gate(hidden)) * hidden + total


@pytest.mark.parametrize("wanted", [False, True])
def test_neighbours_in_a_compiled_graph_become_one_operator(wanted):
    """A sum with its norm where no gradient is wanted, a gate in either case; results are what they were."""
    torch.manual_seed(0)
    model, x, y = Fusible(), torch.randn(4, 16), torch.randn(4, 16)
    expected = model(x, y)
    gradients = torch.autograd.grad(expected.sum(), list(model.parameters()))
    patch(model, example=(x, y))
    compile_with = backend("eager")
    torch._dynamo.reset()
    with torch.set_grad_enabled(wanted):
        found = torch.compile(model, backend=compile_with, fullgraph=True)(x, y)
    assert dict(compile_with.fused) == {"silu_mul": 1} | ({} if wanted else {"add_rmsnorm": 1})
    torch.testing.assert_close(found, expected)
    if wanted:
        for mine, theirs in zip(torch.autograd.grad(found.sum(), list(model.parameters())), gradients, strict=True):
            torch.testing.assert_close(mine, theirs)
    sums = torch.fx.symbolic_trace(lambda a, b: torch.nn.functional.silu(a) * b)
    # nothing is known of shapes here
    assert not fuse(sums)
