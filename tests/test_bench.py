"""The main job where several kernels are verified and bound at once, as on a machine with a GPU."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from opforge.core.verdict import Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.timing import Plan
from opforge.verdicts.suite import QUICK
from opforge.workbench import Options, bench


@pytest.mark.campaign
def test_side_by_side_every_implementation_is_verified_before_the_first_is_timed():
    """Compiling and verifying side by side must change neither the verdicts nor their order, and nothing may run beside a clock."""
    registry = load([])
    stages: list[tuple[str, str]] = []
    options = Options(device="cpu", backends=("torch", "cpp"), dtypes=("float32", "bfloat16"), most=1, effort=QUICK, plan=Plan(samples=5, budget_s=0.05))
    with patch("opforge.workbench.bench.at_once", lambda device: 4), Isolated() as host:
        records = list(bench(registry, ["mean_var"], options, host, listener=lambda event: stages.append((event.stage, event.what))))
    assert [(record.dtype, record.backend) for record in records] == [("float32", "cpp"), ("float32", "torch"), ("bfloat16", "cpp"), ("bfloat16", "torch")]
    assert all(isinstance(record.verdict, Pass) and record.timing is not None for record in records)
    assert len({record.workload for record in records}) == 1
    kinds = [stage for stage, _ in stages if stage != "record"]
    assert kinds == ["verify"] * 4 + ["time"] * 2


def test_at_most_so_many_workloads():
    """A bench of everything must be able to stay small."""
    from opforge.workbench.bench import workloads_for

    operator = load([]).operator("softmax")
    whole = workloads_for(operator, Options(device="cpu"))
    assert len(whole) >= 2
    assert workloads_for(operator, Options(device="cpu", most=1)) == whole[:1]
