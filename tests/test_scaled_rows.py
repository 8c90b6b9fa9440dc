"""Rows of every size: what is wrong where a whole row lies in a narrow band of values is met, and not by luck."""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Pass
from opforge.definitions.bounds.rows import centred_row, gradient_errors, lost_below
from opforge.registry import load
from opforge.runner import InProcess
from opforge.runner.worker.inputs import DISTRIBUTIONS
from opforge.verify import CaseCache, verify
from opforge.verify.cases.case_cache import Undefined
from opforge.verify.cases.extreme_values import NARROWER
from opforge.verify.cases.hidden import EXACT, QUICK, hidden_cases, rows

HOME = Path(__file__).parent / "redteam" / "home"
LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize(("kind", "reach"), [("scaled", 111), ("scaled_half", 47), ("scaled_quarter", 31)])
def test_each_row_has_a_power_of_two_of_its_own(kind, reach):
    """Of values that are drawn one by one, the largest of a row is near the top of the range nearly always."""
    values = DISTRIBUTIONS[kind]((4000, 16), LARGEST, torch.Generator().manual_seed(3))
    powers = values.abs().amax(-1).log2()
    assert bool(torch.isfinite(values).all())
    assert powers.min() < -reach + 3 and powers.max() > reach - 2
    # every band of two binades is met: each has 36 rows of 4000 or more
    counts = torch.histc(powers.float(), bins=reach - 2, min=-reach + 2, max=reach - 2)
    assert counts.min() > 5


def test_rows_are_spread_evenly_over_the_exponents():
    """Drawn one by one, 95 rows leave a third of 95 exponents out: each has one here, in another order each time."""
    made = [
        DISTRIBUTIONS["scaled_half"]((95, 4096), LARGEST, torch.Generator().manual_seed(seed)).abs().mean(-1).log2()
        for seed in range(3)
    ]
    places = [(powers - powers.min()).round().long().tolist() for powers in made]
    assert all(sorted(place) == list(range(95)) for place in places)
    assert places[0] != places[1] != places[2]
    for shape in ((), (0, 3), (5,)):
        assert DISTRIBUTIONS["scaled"](shape, LARGEST, torch.Generator().manual_seed(0)).shape == shape


def test_hidden_cases_have_one_with_many_rows():
    """Few rows are in few bands."""
    registry = load([HOME])
    for seed in range(20):
        cases = hidden_cases(
            registry.operator("rt_var"), "float32", count=6, most_elements=QUICK.elements, source=random.Random(seed)
        )
        scaled = [case for case in cases if case.distribution == "scaled"]
        assert scaled and all(rows(registry.operator("rt_var"), case) >= 128 for case in scaled)


def test_the_widest_reach_is_taken_that_a_definition_bears():
    """A variance squares: of 2^111 nothing is left that float32 can hold, and of 2^47 everything."""
    registry = load([HOME])
    for name, kind in (("rt_softmax", "scaled"), ("rt_var", NARROWER["scaled"])):
        operator = registry.operator(name)
        cases = CaseCache(registry=registry, operator=operator, host=InProcess(), device="cpu")
        case = Case(name="hidden_1_scaled", axes={"lead": (256,), "cols": 16}, why="drawn", distribution="scaled")
        prepared = cases.prepare_if_defined(case, "float32")
        assert prepared.case.distribution == kind and prepared.case.name == f"hidden_1_{kind}"
        # asked again, for the next implementation, it is the same memory
        assert cases.prepare_if_defined(case, "float32") is prepared
        cases.close()


@pytest.mark.parametrize(
    ("name", "implementation", "dtype"),
    [
        ("layernorm_backward", "torch_definition", "float32"),
        ("layernorm_backward", "torch_definition", "bfloat16"),
        ("rmsnorm_backward", "torch_eager", "float32"),
        ("linear_fp8", "torch_eager", "float16"),
    ],
)
def test_honest_kernels_pass_on_rows_of_every_size(name, implementation, dtype):
    """Cubes of a scale, and what is stored between two passes, lie below the least number of a format on some rows:
    who computes so is no cheat.
    """
    registry = load()
    operator = registry.operator(name)
    cases = CaseCache(registry=registry, operator=operator, host=InProcess(), device="cpu")
    asked = []
    for seed in range(8):
        drawn = hidden_cases(operator, dtype, count=8, most_elements=1 << 12, source=random.Random(seed))
        for case in (case for case in drawn if case.distribution == "scaled"):
            # fences need a process of their own
            here = dataclasses.replace(case, name=f"{case.name}_{seed}", layout="contiguous")
            prepared = cases.prepare_if_defined(here, dtype)
            asked += [] if isinstance(prepared, Undefined) else [prepared.case]
    found = verify(cases, registry.implementation(name, implementation), dtype, cases=asked, effort=EXACT)
    cases.close()
    assert len(asked) > 2 and isinstance(found, Pass), found


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_gradient_may_overflow_where_a_part_of_it_does(columns):
    """PyTorch's kernel for CPUs multiplies dy by x and by the scale, and sum(g) by the mean, before the weight and the
    cube of the scale bring them back: one verification in thirty was a Mismatch for NaN. Little else is forgiven.
    """
    registry = load()
    kernel = registry.implementation("layernorm_backward", "torch_definition")
    cases = CaseCache(
        registry=registry, operator=registry.operator("layernorm_backward"), host=InProcess(), device="cpu"
    )
    axes, forgiven, infinite = {"lead": (256,), "cols": columns}, 0, 0
    for seed in range(4):
        case = Case(name=f"drawn_{seed}", axes=axes, why="", distribution="exponents", seed=seed)
        prepared = cases.prepare_if_defined(case, "float32")
        if isinstance(prepared, Undefined) or prepared.case.distribution != "exponents":
            continue
        found = verify(cases, kernel, "float32", cases=[prepared.case], effort=EXACT)
        assert isinstance(found, Pass), found
        expectation = next(one for one in prepared.truth.expectations if one.output == "dx")
        x, weight, dy = (prepared.arena.tensor(name) for name in ("x", "weight", "dy"))
        _, mean, scale = torch.ops.aten.native_layer_norm(x, [columns], weight, weight, 1e-5)
        dx = torch.ops.aten.native_layer_norm_backward(
            dy, x, [columns], mean, scale, weight, weight, [True, False, False]
        )[0]
        infinite += int((~dx.isfinite()).sum())
        forgiven += 0 if expectation.beyond is None else int(expectation.beyond.sum())
    cases.close()
    assert 0 < infinite <= forgiven < 1.5 * infinite


def test_what_is_forgiven_on_a_row_is_what_float32_cannot_hold():
    """On rows whose cubes fit, a gradient's bound is what it was: nothing is added."""
    generator = torch.Generator().manual_seed(4)
    x, g = (torch.randn(64, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    for power in (-8, 0, 8):
        row = centred_row(x * 2.0**power, 1e-5)
        errors = gradient_errors(row, g)
        assert bool((lost_below(row, g) < 1e-3 * errors.typical).all())
    far = centred_row(x * 2.0**45, 1e-5)
    assert bool((lost_below(far, g) > gradient_errors(far, g).typical * 1e-3).any())
