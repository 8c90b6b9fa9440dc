"""A tensor that C++ reads as another type than it has: refused when the file is read, with the line."""

from __future__ import annotations

import textwrap

import pytest

from opforge.core.language.errors import UsageError
from opforge.registry import load

DEFINITION = """
from opforge.core.definition.operator import Case, Operator, TensorSpec

operator = Operator(
    name="taken",
    about="x at places",
    inputs=(TensorSpec(name="x", shape="n"), TensorSpec(name="at", shape="n", dtype="int64", below="n")),
    outputs=(TensorSpec(name="y", shape="n"),),
    reference=lambda x, at: x[at],
    flops="n",
    cases=(Case(name="few", axes={"n": 5}, why="few"),),
    implementations=("cpp_one",),
)
"""
KERNEL = """
#include "opforge/host.h"

void taken(opforge::TensorView x, opforge::TensorView places, opforge::TensorView y) {
  const auto* at = opforge::data<const TYPE>(places);
}
OPFORGE_EXPORT(run, taken)
"""


def read(tmp_path, kind):
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "op.py").write_text(textwrap.dedent(DEFINITION))
    (folder / "cpp_one.cpp").write_text(KERNEL.replace("TYPE", kind))
    return load([tmp_path]).implementations("taken")


@pytest.mark.parametrize("kind", ["int64_t", "std::int64_t", "uint64_t", "T"])
def test_its_own_type_is_read(tmp_path, kind):
    assert [item.name for item in read(tmp_path, kind)] == ["cpp_one"]


@pytest.mark.parametrize("kind", ["int32_t", "int", "float", "double", "uint8_t"])
def test_another_type_is_refused_with_its_line(tmp_path, kind):
    """opforge::data<const int32_t> of an int64 tensor compiled, and read halves of numbers."""
    words = rf"cpp_one.cpp:5: places is int64 in op.py, and is read as {kind}. Read it as opforge::data<const int64_t>"
    with pytest.raises(UsageError, match=words):
        read(tmp_path, kind)
