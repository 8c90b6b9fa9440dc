"""Pipelines: declared once, each stage and the whole held against float64, NaN and infinity asked at each stage."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from opforge.core.definition.pipeline import Pipeline, PipelineCase, Stage
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.registry.pipelines import load_pipeline, pipeline_files
from opforge.runner import InProcess, Isolated
from opforge.verify.extra import pipeline as checks
from opforge.verify.extra.pipeline import verify_pipeline

CASE = PipelineCase(name="small", axes={"n": 67}, why="one past a block")
TWO = (
    Stage(name="h", operator="silu", axes={"shape": ("n",)}, inputs={"x": "x"}),
    Stage(name="y", operator="vector_add", axes={"shape": ("n",)}, inputs={"x": "h", "y": "x"}),
)


def asked(stages, dtypes=("float32",)):
    pipeline = Pipeline(name="two", about="", stages=stages, cases=(CASE,))
    return list(verify_pipeline(load(), pipeline, InProcess(), "cpu", dtypes, ("torch",)))


def test_each_stage_and_the_whole_hold_with_nan_and_infinities_at_each():
    """What is right stays right when it is joined: plain, and with special values into either stage."""
    outcomes = asked(TWO, dtypes=("float32", "bfloat16"))
    assert [outcome.special for outcome in outcomes] == ["", "h", "y"] * 2
    assert not [outcome.failure for outcome in outcomes if outcome.failure]
    assert all(outcome.worst is not None and 0 < outcome.worst < 1 for outcome in outcomes)


def test_a_stage_that_is_wrong_is_named(monkeypatch):
    """A part is judged on what it got: who is wrong is not found at the end only."""
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x, inplace=False: x * torch.sigmoid(1.01 * x))
    outcomes = asked(TWO)
    assert all(outcome.failure.startswith("stage h (torch_eager): Mismatch") for outcome in outcomes)


def test_the_whole_is_held_against_float64_and_not_against_its_parts_alone(monkeypatch):
    """Parts that each pass may be joined wrongly: then the whole is off."""
    real = checks.Chain.prepared

    def crossed(self, stage, case, given, exact, special):
        if stage.name == "y":
            given["h"] = given["h"].roll(1)
        return real(self, stage, case, given, exact, special)

    monkeypatch.setattr(checks.Chain, "prepared", crossed)
    assert "the whole is off by" in asked(TWO)[0].failure


def test_what_a_baseline_is_known_to_get_wrong_stops_nobody_behind_it(monkeypatch):
    """PyTorch's gelu by erf is NaN at infinity on some processors, and here on all. Where its file says so, the stages
    after it get what is right.
    """
    files, gelu = checks._files, torch.nn.functional.gelu
    monkeypatch.setattr(
        torch.nn.functional, "gelu", lambda x, **how: gelu(x, **how).masked_fill(x.isinf(), float("nan"))
    )
    monkeypatch.setattr(
        checks,
        "_files",
        lambda *asked: [dataclasses.replace(item, inaccurate="NaN at infinity") for item in files(*asked)],
    )
    pipeline = Pipeline(
        name="two",
        about="",
        stages=(Stage(name="h", operator="gelu", axes={"shape": ("n",)}, inputs={"x": "x"}), TWO[1]),
        cases=(CASE,),
    )
    plain, special, later = verify_pipeline(load(), pipeline, InProcess(), "cpu", ("float32",), ("torch",))
    assert not [one.failure for one in (plain, special, later) if one.failure]
    assert (plain.excused, special.excused, later.excused) == ((), ("h",), ())


def test_a_lost_nan_shows_in_the_whole():
    """NaN and infinities must stand where float64 has them."""
    nan = torch.tensor([1.0, float("nan"), 2.0], dtype=torch.float64)
    worst, failure = checks._held(torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64), nan, [nan, nan])
    assert worst is None and "1 are not that should be" in failure


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (TWO[:1], "two stages or more"),
        ((TWO[0], Stage(name="y", operator="relu", axes={"shape": ("n",)})), "takes nothing from 'h'"),
        ((TWO[0], Stage(name="y", operator="relu", axes={"shape": ("m",)}, inputs={"x": "h"})), "gives no size for m"),
    ],
)
def test_a_pipeline_that_does_not_join_is_refused_when_it_is_read(stages, words):
    """A mistake in the declaration is no verdict on a kernel."""
    with pytest.raises(UsageError, match=words):
        Pipeline(name="two", about="", stages=stages, cases=(CASE,))


def test_pipelines_are_found_in_homes(tmp_path: Path):
    """The package's, and a file of one's own; a misspelt input is told with those that there are."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "mine.py").write_text(
        "from opforge.core.definition.pipeline import Pipeline, PipelineCase, Stage\n"
        "pipeline = Pipeline(name='mine', about='', cases=(PipelineCase(name='a', axes={'n': 3}, why=''),), stages=(\n"
        "    Stage(name='h', operator='relu', axes={'shape': ('n',)}),\n"
        "    Stage(name='y', operator='silu', axes={'shape': ('n',)}, inputs={'z': 'h'})))\n",
        encoding="utf-8",
    )
    registry = load([tmp_path])
    assert {"mlp", "classifier", "mine"} <= set(pipeline_files(registry))
    with pytest.raises(UsageError, match="gives silu an input 'z'"):
        load_pipeline(registry, "mine")
    with pytest.raises(UsageError, match="classifier"):
        load_pipeline(registry, "clasifier")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("PipelineCase(name='a', axes=3, why='')", r"broken\.py:2: .*axes"),
        (
            "Stage(name='h', operator='relu', axes={}, input={})",
            r"\(line 2\)\. Did you mean 'inputs'\? Stage has name, ",
        ),
        ("1 / 0", r"ZeroDivisionError: division by zero \(line 2\)"),
        ("Pipeline(", r"SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line(tmp_path: Path, written, words):
    """As that of an operator."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "broken.py").write_text(
        f"from opforge.core.definition.pipeline import Pipeline, PipelineCase, Stage\npipeline = {written}\n",
        encoding="utf-8",
    )
    with pytest.raises(UsageError, match=words):
        load_pipeline(load([tmp_path]), "broken")


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["mlp", "classifier"])
def test_the_packages_pipelines_hold_in_cpp(name):
    """The C++ files, joined."""
    registry = load()
    pipeline = load_pipeline(registry, name)
    host = Isolated()
    try:
        outcomes = list(verify_pipeline(registry, pipeline, host, "cpu", ("float32",), ("cpp",)))
    finally:
        host.close()
    assert len(outcomes) == 2 * (1 + len(pipeline.stages))
    assert not [outcome.failure for outcome in outcomes if outcome.failure]


def test_quick_runs_the_first_case_in_the_first_dtype(monkeypatch):
    """`verify --pipeline mlp --quick` took --quick and verified everything."""
    from opforge.verify.extra import pipeline as room

    class Named:
        def __init__(self, registry, pipeline, host, device, dtype, name):
            self.dtype, self.name = dtype, name

        def run(self, case, special):
            return self.name, self.dtype, case.name, special

        def close(self):
            pass

    monkeypatch.setattr(room, "Chain", Named)
    registry = load()
    known = load_pipeline(registry, "mlp")
    quick = list(room.verify_pipeline(registry, known, None, "cpu", (), ("torch",), quick=True))
    first = ("torch", known.dtypes[0], known.cases[0].name)
    assert quick == [(*first, ""), (*first, known.stages[0].name)]
    assert len(list(room.verify_pipeline(registry, known, None, "cpu", (), ("torch",)))) == len(known.dtypes) * len(
        known.cases
    ) * (1 + len(known.stages))
