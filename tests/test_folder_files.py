"""The target of a task book: where it stands, what says whether it is reached, and one file that says PASSED."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from opforge.cli import folder_files
from opforge.core.evidence.comparison import Comparison
from opforge.core.evidence.optimization import PARAMETERS
from opforge.core.evidence.record import to_json
from opforge.forge import files_of
from opforge.forge.loop.engine import Variant
from opforge.forge.loop.rules import ACCESS, DEPTH, GRID, reasons
from opforge.forge.program.definition import definition_of
from opforge.forge.write.four_files import target_of


def files(**more):
    return files_of(definition_of({"inputs": {"x": "*lead cols"}, "formula": "y = silu(x)", **more}, "made", "here"))


def written(folder, **more):
    home = folder / "made"
    home.mkdir()
    for name, text in files(**more).items():
        (home / name).write_text(text)
    return home


def test_the_target_of_a_definition_is_in_its_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert target_of(written(tmp_path / "a", target=1.2)) == 1.2
    assert target_of(written(tmp_path / "b")) is None
    assert target_of(tmp_path) is None


def test_the_workloads_that_the_text_uses_stand_in_its_table():
    """The table was empty where the definition named none, and the text told of the largest one."""
    table = files()["definition.md"]
    assert "| laptop | `lead=1024, cols=1024`" in table
    assert "| large | " in table


def compared(ratio, outcome):
    return Comparison(
        a="made:cpp_simd", b="made:torch_eager", workload="laptop", dtype="float32", outcome=outcome, ratio=ratio,
        low=ratio, high=ratio, band=0.01, confidence=0.99, p=0.0, rank_p=0.0, samples_a_s=(ratio,), samples_b_s=(1.0,),
        spent_s=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(("target", "code", "last"), [(1.2, 0, "target 1.2: reached"), (3.0, 1, "not reached")])
def test_performance_reads_what_compare_writes(target, code, last, tmp_path, monkeypatch, capsys):
    written = to_json({"comparisons": [compared(0.5, "FASTER")], "mean": None, "not_compared": {"large float32": "no"}})

    def run(words, **_):
        assert words[-1] == "--json"
        return SimpleNamespace(returncode=0, stdout=json.dumps(written))

    monkeypatch.setattr(folder_files, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
    assert folder_files.performance(tmp_path, "made:cpp_simd", "made:torch_eager", target, []) == code
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("laptop float32: FASTER: made:cpp_simd takes 0.500 times as long")
    assert second == "large float32: no"
    assert last in third


@pytest.mark.parametrize(
    ("found", "target", "words", "reached"),
    [
        ([compared(0.5, "FASTER")], 1.2, "target 1.2: reached (2.00 times as fast", True),
        ([compared(0.5, "FASTER"), compared(1.0, "SAME")], 1.5, "target 1.5: not reached (1.41", False),
        ([compared(0.1, "UNSURE")], 1.2, "target 1.2: unsure", False),
        ([compared(2.0, "SLOWER")], None, "no target was given", True),
        ([], 1.2, "not reached", False),
    ],
)
def test_a_target_is_reached_not_reached_or_unsure(found, target, words, reached):
    told, fact = folder_files.verdict(found, target)
    assert words in told
    assert fact is reached


@pytest.mark.parametrize(("failing", "code"), [("accuracy", 1), ("performance", 1), ("", 0)])
def test_one_file_asks_accuracy_then_performance(failing, code, tmp_path, monkeypatch, capsys):
    asked = []

    def run(words, **_):
        asked.append(Path(words[1]).name)
        return SimpleNamespace(returncode=int(bool(failing) and failing in words[1]))

    monkeypatch.setattr(folder_files, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
    assert folder_files.tested(tmp_path / "made", ["--dtype", "float32"]) == code
    assert asked == ["made_accuracy.py", "made_performance.py"][: 1 if failing == "accuracy" else 2]
    assert capsys.readouterr().out.endswith("PASSED\n" if not failing else f"NOT PASSED: {failing}\n")


def test_reasons_are_those_of_the_changes():
    """SUMS 4 → 1 was tried because "more sums hide the latency"."""

    def changed(*steps):
        return [Variant(text="", change=step, claims=PARAMETERS) for step in steps]

    assert reasons(DEPTH, changed("SUMS 4 → 1")) == "less under way leaves registers and code to the rest (SUMS 4 → 1)"
    both = reasons(ACCESS, changed("WIDE 0 → 1, STREAM 1 → 0"))
    assert both.startswith("wide accesses") and "plain accesses suit what is small or kept (STREAM 1 → 0)" in both
    assert reasons(GRID, changed("SPLIT 1 → 4")).startswith("more, smaller shares")
