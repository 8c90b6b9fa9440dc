"""The check is checked: no operator's bound may accept what is no answer."""

from __future__ import annotations

import shutil

import pytest
import torch

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Case, Operator, TensorSpec, Tolerance, Workload
from opforge.core.language.errors import OpforgeError
from opforge.registry import load
from opforge.verify.cases.hidden import elements
from opforge.verify.extra.adequacy import IMPOSTORS, QUICK_ELEMENTS, Inadequate, adequacy, require, situations

NAMES = load().names()


def by_digits(name):
    """The dtypes of an operator, that with the fewest digits, and so the widest bound, first."""
    return sorted(load().operator(name).dtypes, key=lambda dtype: DTYPES[dtype].significand)


def refused_all(name, dtypes):
    found = adequacy(load().operator(name), dtypes=dtypes, most_elements=QUICK_ELEMENTS)
    assert not found.accepted
    assert found.score == 1.0 and found.count("rejected") > len(found.impostors) / 2


@pytest.mark.parametrize("name", NAMES)
def test_no_impostor_passes_for_any_operator(name):
    """Zeros for a 50,257-wide softmax pass 4 of 13 harnesses in float32; here nothing of the kind may pass anywhere."""
    refused_all(name, by_digits(name)[:1])


@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for name in NAMES if len(by_digits(name)) > 1])
def test_no_impostor_passes_in_any_dtype(name):
    refused_all(name, by_digits(name)[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_impostor_passes_at_larger_sizes(name):
    """Longer reductions have wider bounds."""
    assert not adequacy(load().operator(name)).accepted


def scale_by(tolerance, **more):
    return Operator(
        name="wide_bound",
        about="an operator for this test",
        inputs=(TensorSpec(name="x", shape="rows cols"),),
        outputs=(TensorSpec(name="y", shape="rows cols"),),
        reference=lambda x: torch.softmax(x, -1),
        flops="rows * cols",
        dtypes=("float32",),
        tolerance=tolerance,
        cases=(Case(name="wide", axes={"rows": 2, "cols": 2000}, why="small results"),),
        **more,
    )


def test_a_fixed_bound_lets_zeros_through_and_is_refused():
    """One absolute number for everything, as in the seeds, on a wide softmax."""
    careless = scale_by(
        Tolerance(magnitude=lambda inputs, outputs, scalars: {"y": torch.full_like(outputs["y"], 2e-2 / 7e-7)})
    )
    names = {impostor.name for impostor in adequacy(careless).accepted}
    assert {"zeros", "mean", "shuffled rows", "one percent too large"} <= names
    with pytest.raises(Inadequate, match=r"accepts 'zeros' in wide .*opforge verify --adequacy wide_bound"):
        require(careless)
    assert adequacy(scale_by(Tolerance(length="cols"))).score == 1.0


def test_bench_refuses_an_inadequate_operator(guest, monkeypatch, tmp_path):
    """Before any kernel of it runs; and a good answer is kept under the hash of op.py, a bad one never."""
    from opforge.runner import Isolated
    from opforge.workbench import BenchOptions, verify_all

    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))
    home = guest(right="def run(x, bias):\n    return x + bias\n")
    definition = home / "guest_add" / "op.py"
    with Isolated() as host:
        options = BenchOptions(dtypes=("float32",), backends=("torch",), timed=False)
        assert len(list(verify_all(load([home]), ["guest_add"], options, host))) == 1
        assert len(list((tmp_path / "cache" / "adequacy").iterdir())) == 1
        definition.write_text(
            definition.read_text().replace(
                "Tolerance(magnitude=magnitude)", "Tolerance(magnitude=magnitude, factor=1e6)"
            )
        )
        with pytest.raises(Inadequate):
            list(verify_all(load([home]), ["guest_add"], options, host))
        assert len(list((tmp_path / "cache" / "adequacy").iterdir())) == 1


def test_an_inadequate_operator_costs_the_others_nothing(guest, monkeypatch, tmp_path):
    """It ended the run of six others. They are recorded, and the command fails at its end."""
    from opforge.runner import Isolated
    from opforge.workbench import BenchOptions, verify_all

    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))
    home = guest(right="def run(x, bias):\n    return x + bias\n")
    text = (home / "guest_add" / "op.py").read_text()
    for name, change in (("a_wide", "magnitude=magnitude, factor=1e6"), ("b_broken", "magnitude=lambda *given: 1")):
        shutil.copytree(home / "guest_add", home / name)
        (home / name / "op.py").write_text(
            text.replace('"guest_add"', f'"{name}"').replace("magnitude=magnitude", change)
        )
    options = BenchOptions(dtypes=("float32",), backends=("torch",), timed=False)
    found = []
    with (
        Isolated() as host,
        pytest.raises(
            OpforgeError, match=r"(?s)^a_wide: its tolerance.*\nThe tolerance's magn.*\nAll other oper"
        ) as end,
    ):
        for record in verify_all(load([home]), ["a_wide", "b_broken", "guest_add"], options, host):
            found.append((record.operator, type(record.verdict).__name__))
    assert found == [("guest_add", "Pass")] and end.value.exit_code == 1


def test_the_same_definition_gets_the_same_answer():
    """Whatever was drawn before, and however many threads there are."""
    wide = scale_by(Tolerance(factor=1e5))
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        answers.append(adequacy(wide, most_elements=QUICK_ELEMENTS).impostors)
    assert answers[0] == answers[1] and {impostor.outcome for impostor in answers[0]} >= {"accepted", "rejected"}
    assert set(answers[0]) <= set(adequacy(wide).impostors)


def test_what_was_found_adequate_is_asked_again_when_shared_code_changes():
    """Half of the operators take their magnitudes from definitions: a change there let an old answer stand."""
    from opforge.trial.adequacy_gate import decisive

    folder = load().operator("softmax").folder
    names = {path.relative_to(path.parents[1]).as_posix() for path in decisive(folder / "op.py")}
    assert {
        "softmax/op.py",
        "core/operator.py",
        "definition/operator.py",
        "definitions/cases.py",
        "definition/dtypes.py",
        "oracle/expectation.py",
        "judging/elements.py",
        "worker/inputs.py",
    } <= names
    assert "bounds/sums.py" in {
        path.relative_to(path.parents[1]).as_posix() for path in decisive(load().operator("rmsnorm").folder / "op.py")
    }


def test_every_case_and_workload_is_a_situation():
    """A workload too large for this machine is scaled down, never left out."""
    operator = load().operator("matmul")
    found = list(situations(operator, "float32", 4096))
    assert [case.name for case in found] == [
        *(c.name for c in operator.cases if c.dtype in (None, "float32")),
        *(w.name for w in operator.workloads),
    ]
    assert all(elements(operator, case) <= 4096 for case in found)


def test_an_impostor_that_is_right_is_excused_and_counted():
    """Rows of equal values shuffled are still right; a check that failed them would fail the truth."""
    constant = scale_by(
        Tolerance(length="cols"), workloads=(Workload(name="w", axes={"rows": 1, "cols": 1}, source="one element"),)
    )
    found = adequacy(constant)
    assert found.count("excused") > 0 and not found.accepted
    assert {impostor.name for impostor in found.impostors} == {*IMPOSTORS, "TF32 factors", "bfloat16 factors"}
