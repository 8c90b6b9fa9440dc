"""Triton's interpreter as it is repaired: what a compiled kernel may do an interpreted one may, or it is not run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opforge.core.evidence.verdict import Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import EXACT, CaseCache, verify

LANGUAGE = Path(__file__).parent / "interpreted_language.py"
NOT_INTERPRETED = {"inline_asm_elementwise": "inline_asm", "dot_scaled": "dot_scaled"}
"""What the interpreter has not, and the word for it in the verdict."""
NO_OPERATION = {
    *("TRITON_MAX_TENSOR_NUMEL", "block_type", "const", "constexpr_type", "extra", "pi32_t", "pointer_type", "void"),
    *("float32", "float8e4b15", "float8e4b8", "float8e5b16"),
}
"""Public names that a kernel calls nothing by, or that no device here has."""


# one process interprets for all
pytestmark = pytest.mark.xdist_group("interpreter")


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What each small kernel gave: interpreting is chosen when Triton is imported, so in a process of its own."""
    printed = subprocess.run([sys.executable, LANGUAGE], capture_output=True, text=True, check=True, timeout=120).stdout
    return dict(json.loads(printed.splitlines()[-1]))


def test_interpreted_kernels_compute_what_compiled_ones_do(found: dict[str, str]) -> None:
    """`and` of masks, `.to` of a number, bfloat16 atomics and 40 others: an honest kernel was called wrong."""
    assert "grid" in found
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


PUBLIC = '''
"""A launcher that makes its result."""
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n), 0, propagate_nan=tl.PropagateNan.ALL), mask=at < n)

class Public(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y

def run(x):
    return Public.apply(x)
'''


def test_a_public_autograd_function_is_an_implementation_in_one_line(tmp_path: Path) -> None:
    """Inputs in, outputs out: of a shipped operator, from a home of one's own."""
    (tmp_path / "relu").mkdir()
    (tmp_path / "relu" / "triton_public.py").write_text(PUBLIC)
    registry = load([tmp_path])
    with Isolated() as host:
        operator = registry.operator("relu")
        cases = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
        implementation = registry.implementation("relu", "triton_public")
        verdict = verify(cases, implementation, "float32", cases=operator.cases[:2], effort=EXACT)
    assert isinstance(verdict, Pass), verdict
