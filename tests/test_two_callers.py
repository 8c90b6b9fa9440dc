"""Two threads call one implementation at once: memory that calls share is found, memory of a call is right."""

from __future__ import annotations

import pytest

from opforge.core.evidence.verdict import Mismatch, Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK

DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec
operator = Operator(name="doubled", about="y = 2 x", inputs=(TensorSpec(name="x", shape="n"),),
    outputs=(TensorSpec(name="y", shape="n"),), reference=lambda x: 2 * x, flops="n", dtypes=("float32",),
    cases=(Case(name="small", axes={"n": 7}, why="small"), Case(name="plain", axes={"n": 60001}, why="plain")))
"""
CPP = """// twice, through scratch memory
#include "opforge/host.h"

void twice(opforge::TensorView x, opforge::TensorView y) {
  STORAGE float scratch[1 << 16];
  const float* in = opforge::data<const float>(x);
  float* out = opforge::data<float>(y);
  for (int64_t first = 0; first < x.numel(); first += 1 << 16) {
    const int64_t count = std::min<int64_t>(x.numel() - first, 1 << 16);
    for (int64_t i = 0; i < count; ++i) scratch[i] = in[first + i];
    for (int64_t i = 0; i < count; ++i) out[first + i] = 2 * scratch[i];
  }
}

OPFORGE_EXPORT(run, twice)
"""
TORCH = """\"\"\"Twice, in a buffer.\"\"\"
import torch
NOT_COMPILED = "the buffer is the point"
KEPT = {}

def run(x):
    buffer = BUFFER
    buffer.copy_(x)
    return buffer + buffer
"""
FILES = {
    "cpp_static.cpp": CPP.replace("STORAGE", "static"),
    "cpp_own.cpp": CPP.replace("STORAGE", "static thread_local"),
    "torch_kept.py": TORCH.replace("BUFFER", "KEPT.setdefault(x.shape, torch.empty(x.shape))"),
    "torch_eager.py": TORCH.replace("BUFFER", "torch.empty(x.shape)"),
}


@pytest.mark.parametrize(
    ("file", "right"),
    [
        ("cpp_static.cpp", False),
        ("torch_eager.py", True),
        pytest.param("cpp_own.cpp", True, marks=pytest.mark.campaign),
        pytest.param("torch_kept.py", False, marks=pytest.mark.campaign),
    ],
)
def test_memory_that_calls_share_is_found(tmp_path, file, right):
    """Each call by itself is right, however often it is made."""
    folder = tmp_path / "doubled"
    folder.mkdir()
    (folder / "op.py").write_text(DEFINITION)
    (folder / file).write_text(FILES[file])
    registry = load([tmp_path])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("doubled"), host=host, device="cpu")
        implementation = registry.implementation("doubled", file.partition(".")[0])
        verdict = verify(bench, implementation, "float32", effort=QUICK)
        bench.close()
    if right:
        assert isinstance(verdict, Pass), verdict
    else:
        assert isinstance(verdict, Mismatch) and verdict.cause.startswith("right when it is called alone"), verdict
        assert verdict.case.name.startswith("plain"), verdict.case
