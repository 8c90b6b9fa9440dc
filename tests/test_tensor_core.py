"""The emulation of tensor cores and asynchronous copies: it computes what the hardware does, and shows what is
forgotten.
"""

import shutil
from pathlib import Path

import pytest

from opforge.backends import native
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Mismatch, Pass
from opforge.registry import load
from opforge.registry.discovery import PACKAGE_HOME
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify

CASE = Case(
    name="three_steps",
    axes={"m": 20, "n": 24, "k": 88},
    why="three steps of k pass through the ring of stages, the last one and the last rows and columns cut off",
)

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the emulator needs a C++ compiler: apt-get install g++"
)


def verdict_on(folder: Path, change: tuple[str, str] | None):
    """The verdict on cuda_mma, with one place in the header that it is made of changed, under the emulator."""
    home = folder / "home"
    target = home / "guest_matmul"
    target.mkdir(parents=True)
    original = PACKAGE_HOME / "gemm" / "matmul"
    definition = (original / "op.py").read_text().replace('name="matmul"', 'name="guest_matmul"')
    start = definition.index("    implementations=(")
    (target / "op.py").write_text(definition[:start] + '    implementations=("cuda_mma",),\n)\n')
    (target / "cuda_mma.cu").write_text((original / "cuda_mma.cu").read_text())
    if change is not None:
        # a header beside the source is found before opforge's own
        header = (native.INCLUDE / "opforge" / "gemm" / "mma.h").read_text()
        assert header.count(change[0]) == 1, "the place to change must be found"
        (target / "opforge" / "gemm").mkdir(parents=True)
        (target / "opforge" / "gemm" / "mma.h").write_text(header.replace(*change))
    registry = load([home])
    operator = registry.operator("guest_matmul")
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
        try:
            return verify(bench, registry.implementation("guest_matmul", "cuda_mma"), "float16", cases=[CASE])
        finally:
            bench.close()


def test_matrix_products_agree_with_the_oracle(tmp_path):
    """ldmatrix, mma.m16n8k16 and cp.async together: every lane's share lies where the PTX ISA puts it."""
    assert isinstance(verdict_on(tmp_path, None), Pass)


@pytest.mark.first_only
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            ("wait_for_copies<S::kStages - 2>", "wait_for_copies<S::kStages - 1>"), id="waits for one step too few"
        ),
        pytest.param(("load_matrices_transposed(right[j]", "load_matrices(right[j]"), id="b is not transposed"),
        pytest.param(("room * static_cast<int>(sizeof(T))", "16"), id="copies are not cut off at the edge"),
    ],
)
def test_a_planted_bug_is_found_without_a_gpu(tmp_path, change):
    """Each of these compiles and runs; on a GPU the first would pass now and then."""
    assert isinstance(verdict_on(tmp_path, change), Mismatch)
