"""Typical mistakes of who writes kernels: each message names the place, and the next step."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from opforge.backends import native
from opforge.core.errors import UsageError
from opforge.forge import create
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache, consult, verify
from opforge.verify.cases.hidden import EXACT


@pytest.fixture
def squares(tmp_path):
    create(load(), "squares", tmp_path)
    return tmp_path


def verdict_of(home, name):
    """The verdict on one small case of a file of the user's."""
    registry = load([home])
    operator = registry.operator("squares")
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
        item = registry.implementation("squares", name)
        verdict = verify(bench, item, "float32", cases=operator.cases[:1], effort=EXACT)
        bench.close()
    return verdict


def test_the_compilers_first_error_comes_before_its_command(squares):
    """The command of twenty flags was all that a narrow terminal showed."""
    file = squares / "squares" / "cpp_flat.cpp"
    file.write_text(file.read_text().replace("#include", "int wrong = no_such_name;\n#include", 1))
    reason = verdict_of(squares, "cpp_flat").reason
    first, second = reason.splitlines()[:2]
    assert "cpp_flat.cpp" in first and "error" in first and "no_such_name" in first
    assert second == "Run this to see it whole:"


def test_a_file_without_an_export_is_told_how_to_make_one(squares):
    """It was an AttributeError of the binding's own."""
    file = squares / "squares" / "cpp_flat.cpp"
    kept = [line for line in file.read_text().splitlines() if not line.startswith("OPFORGE_EXPORT")]
    file.write_text("\n".join(kept) + "\n")
    reason = verdict_of(squares, "cpp_flat").reason
    assert "OPFORGE_EXPORT(run, your_function)" in reason


def test_a_reference_that_fails_names_its_case(squares):
    operator = load([squares]).operator("squares")

    def reference(x):
        raise ValueError("bad luck")

    broken = dataclasses.replace(operator, reference=reference)
    words = r"reference of squares raises ValueError: bad luck \(case odd_tail: shape=\(7, 129\)\)\. Correct op\.py"
    with pytest.raises(UsageError, match=words):
        consult(broken, broken.cases[0], "float32", {"x": torch.ones(1)})


def test_a_folder_without_a_definition_is_named(squares):
    """The operator was said to be unknown, with all others that are."""
    (squares / "cubes").mkdir()
    (squares / "cubes" / "triton_flat.py").write_text("")
    with pytest.raises(UsageError, match=rf"{squares / 'cubes'} has no op\.py.*opforge show softmax --source"):
        load([squares]).operator("cubes")


def test_a_misspelt_field_gets_the_nearest_one_and_its_line(squares):
    file = squares / "squares" / "op.py"
    file.write_text(file.read_text().replace("flops=", "flop=", 1))
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'flop' \(line \d+\)\. Did you mean 'flops'\?"):
        load([squares]).operator("squares")


@pytest.mark.parametrize(
    ("complaint", "first"),
    [
        ("a.cpp: In function 'f':\na.cpp:3:5: error: expected ';'\n", "a.cpp:3:5: error: expected ';'"),
        (
            'k.cu(7): error: identifier "y" is undefined\n1 error detected',
            'k.cu(7): error: identifier "y" is undefined',
        ),
        ("ld: a.o: undefined reference to `g'\ncollect2: error: ld returned 1", "ld: a.o: undefined reference to `g'"),
        ("", "it said nothing"),
    ],
)
def test_the_first_error_of_a_compiler(complaint, first):
    assert native.first_error(complaint) == first
