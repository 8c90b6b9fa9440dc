"""The red team's kernels that need a GPU. `scripts/gpu.sh` runs them."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from opforge.core.verdict import FAILURES, Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.timing import Plan
from opforge.verdicts import Bench, verify
from opforge.verdicts.suite import EXACT, QUICK
from opforge.workbench import Options, bench

pytestmark = pytest.mark.gpu

DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec, Workload

operator = Operator(
    name="doubled", about="y = 2 x", inputs=(TensorSpec(name="x", shape="n"),), outputs=(TensorSpec(name="y", shape="n"),),
    reference=lambda x: 2 * x, flops="n", dtypes=("float32",), cases=(Case(name="small", axes={"n": 1000}, why="small"),),
    workloads=(Workload(name="timed", axes={"n": 1 << 20}, source="the red team's stop-watch"),),
    implementations=("torch_honest", "torch_poisons", "torch_side_stream"),
)
"""
HONEST = "def run(x):\n    return 2 * x\n"
# an index out of range: a device-side assertion, after which every call of this process on the device fails
POISONS = "import torch\n\n\ndef run(x):\n    return 2 * x[torch.full((x.numel(),), 1 << 40, device=x.device)]\n"
# most of the work is on a stream that the events around the call do not see
SIDE_STREAM = """
import torch

SIDE = []


def run(x):
    if not SIDE:
        SIDE.append(torch.cuda.Stream())
    y = torch.empty_like(x)
    with torch.cuda.stream(SIDE[0]):
        torch.cuda._sleep(1_000_000)
        torch.mul(x, 2, out=y)
    y.record_stream(SIDE[0])
    return y
"""


@pytest.fixture
def registry(tmp_path):
    folder = tmp_path / "doubled"
    folder.mkdir()
    sources = {"op": DEFINITION, "torch_honest": HONEST, "torch_poisons": POISONS, "torch_side_stream": SIDE_STREAM}
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return load([tmp_path])


def judged(registry, host, name):
    bench = Bench(registry=registry, operator=registry.operator("doubled"), host=host, device="cuda")
    try:
        return verify(bench, registry.implementation("doubled", name), "float32", effort=EXACT)
    finally:
        bench.close()


def test_twenty_poisoned_contexts_fail_nobody_else(registry):
    """A context that has failed stays failed: it must end with the process that it belongs to."""
    with Isolated() as host:
        for _ in range(20):
            assert isinstance(judged(registry, host, "torch_poisons"), FAILURES)
            assert isinstance(judged(registry, host, "torch_honest"), Pass)


def test_work_on_a_side_stream_gets_no_time(registry):
    """Events see the stream they are on; the parent's clock sees when the device has finished."""
    options = Options(device="cuda", implementations=("torch_side_stream",), plan=Plan(samples=5, budget_s=0.1), effort=QUICK)
    with Isolated() as host, patch("opforge.workbench.bench.ensure_adequate", lambda operator: None):
        records = list(bench(registry, ["doubled"], options, host))
    assert all(record.timing is None for record in records) and not isinstance(records[-1].verdict, Pass)
