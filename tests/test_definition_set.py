"""The definitions of examples/definitions: each gives a folder that passes on every backend here, as it was written."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.test_forge import failures

from opforge.forge import generate, read_definition
from opforge.forge.families import layout_of
from opforge.registry import load

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "definitions"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
ASKED_IN_CI = ("running_share", "expert_groups", "drawdown")


def definition(name):
    return read_definition(FOLDER / f"{name}.yaml", name)


def family(name):
    program = definition(name).program()
    if any(value.scans for value in program.values):
        return "scans"
    layout = layout_of(program)
    return "batched products" if layout.family == "product" and len(layout.groups) > 2 else layout.family


def test_there_are_three_definitions_of_each_family_and_sixteen_at_the_least():
    counted = Counter(map(family, NAMES))
    assert set(counted) == {"elementwise", "rows", "product", "scans", "batched products"}
    assert min(counted.values()) >= 3 and sum(counted.values()) >= 16
    assert counted["rows"] >= 6, "reductions, and normalisations"
    assert "broadcast_bias" in NAMES
    assert sum("in no textbook" in definition(name).about for name in NAMES) >= 3


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign if name in ASKED_IN_CI else pytest.mark.slow) for name in NAMES],
)
def test_the_folder_of_a_definition_passes_in_three_dtypes(name, tmp_path):
    """Odd sizes, sizes of 0, special values, other layouts: no file is changed by hand."""
    generate(load(), definition(name), tmp_path)
    dtypes = ["float32", "float16", "bfloat16"]
    assert failures(tmp_path, name, dtypes) == ({}, {"torch", "cpp", "triton"})
    cases = load((tmp_path,)).operator(name).cases
    assert any(0 in (size if isinstance(size, tuple) else (size,)) for case in cases for size in case.axes.values())
