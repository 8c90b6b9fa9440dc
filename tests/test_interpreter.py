"""Triton's interpreter as it is repaired: what a compiled kernel may do an interpreted one may, or it is not run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LANGUAGE = Path(__file__).parent / "interpreted_language.py"
NOT_INTERPRETED = {"inline_asm_elementwise": "inline_asm", "dot_scaled": "dot_scaled"}
"""What the interpreter has not, and the word for it in the verdict."""
NO_OPERATION = {
    *("TRITON_MAX_TENSOR_NUMEL", "block_type", "const", "constexpr_type", "extra", "pi32_t", "pointer_type", "void"),
    *("float32", "float8e4b15", "float8e4b8", "float8e5b16"),
}
"""Public names that a kernel calls nothing by, or that no device here has."""


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What each small kernel gave: interpreting is chosen when Triton is imported, so in a process of its own."""
    printed = subprocess.run([sys.executable, LANGUAGE], capture_output=True, text=True, check=True, timeout=120).stdout
    return dict(json.loads(printed.splitlines()[-1]))


def test_interpreted_kernels_compute_what_compiled_ones_do(found: dict[str, str]) -> None:
    """`and` of masks, `.to` of a number, bfloat16 atomics and 40 others: an honest kernel was called wrong."""
    wrong = {name: said for name, said in found.items() if said != "right" and name not in NOT_INTERPRETED}
    assert not wrong


@pytest.mark.parametrize("name", NOT_INTERPRETED)
def test_what_the_interpreter_lacks_is_no_fault_of_the_kernel(found: dict[str, str], name: str) -> None:
    """It is told as what cannot be run here, with the next step."""
    assert found[name].startswith(f"NotInterpreted: Triton's interpreter has no {NOT_INTERPRETED[name]}")
    assert "Verify it on a GPU" in found[name]


def test_every_public_name_of_the_language_is_asked(found: dict[str, str]) -> None:
    """A name that a new Triton adds is met here first."""
    listed = "import triton.language as tl; print(*tl.__all__)"
    names = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    asked = {name for kernel in found for name in kernel.split()}
    assert set(names) - asked - NO_OPERATION == set()
