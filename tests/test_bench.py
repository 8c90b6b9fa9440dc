"""The main job where several kernels are verified and bound at once, as on a machine with a GPU."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from opforge.core.verdict import Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.timing import Plan
from opforge.verify.cases.hidden import QUICK
from opforge.workbench import BenchOptions, bench, environment_of


@pytest.mark.campaign
def test_side_by_side_every_implementation_is_verified_before_the_first_is_timed():
    """Compiling and verifying side by side must change neither the verdicts nor their order, and nothing may run beside
    a clock.
    """
    registry = load([])
    stages: list[tuple[str, str]] = []
    options = BenchOptions(
        device="cpu",
        backends=("torch", "cpp"),
        dtypes=("float32", "bfloat16"),
        workloads=("shape=64x1000",),
        effort=QUICK,
        plan=Plan(samples=5, budget_s=0.05),
    )
    with patch("opforge.workbench.bench.at_once", lambda device: 4), Isolated() as host:
        records = list(
            bench(registry, ["silu"], options, host, listener=lambda event: stages.append((event.stage, event.what)))
        )
    assert [(record.dtype, record.backend) for record in records] == [
        ("float32", "cpp"),
        ("float32", "torch"),
        ("bfloat16", "cpp"),
        ("bfloat16", "torch"),
    ]
    assert all(isinstance(record.verdict, Pass) and record.timing is not None for record in records)
    assert len({record.workload for record in records}) == 1
    kinds = [stage for stage, _ in stages if stage != "record"]
    assert kinds == ["verify"] * 4 + ["time"] * 2


def test_at_most_so_many_workloads():
    """A bench of everything must be able to stay small."""
    from opforge.workbench.bench import workloads_for

    operator = load([]).operator("softmax")
    whole = workloads_for(operator, BenchOptions(device="cpu"))
    assert len(whole) >= 2
    assert workloads_for(operator, BenchOptions(device="cpu", most=1)) == whole[:1]


@pytest.mark.parametrize(("words", "cache"), [((), "cold"), (("--warm",), "warm"), (("--cold",), "cold")])
def test_a_warm_cache_is_measured_where_it_is_asked_for(monkeypatch, tmp_path, words, cache):
    """Beside a GPU --warm was taken for nothing said, and cold times came under its name."""
    import opforge.cli.bench
    import opforge.machine
    import opforge.workbench
    from opforge.cli.app import command_line

    class Asked(Exception):
        pass

    def bench_of(registry, names, options, host, listener):
        raise Asked(options.plan.cache)

    monkeypatch.setattr(opforge.cli.bench, "device_to_time", lambda given: "cuda")
    monkeypatch.setattr(opforge.machine, "detect", lambda device: next(iter(opforge.machine.descriptors().values())))
    monkeypatch.setattr(opforge.machine, "measure_ceilings", lambda device: None)
    monkeypatch.setattr(opforge.workbench, "bench", bench_of)
    with pytest.raises(Asked, match=cache):
        command_line(["bench"])(
            ["--store", f"sqlite:///{tmp_path / 's.sqlite'}", "bench", "softmax", *words], standalone_mode=False
        )


@pytest.mark.parametrize(
    ("device", "cache", "apart"), [("cuda", "warm", True), ("cuda", "cold", False), ("cpu", "warm", False)]
)
def test_warm_times_have_a_history_of_their_own(monkeypatch, device, cache, apart):
    """Beside a GPU everything else is measured cold: three warm runs would be a step, and a baseline of them a
    regression.
    """
    import sys

    from opforge.core.record import Environment

    module = sys.modules["opforge.workbench.bench"]
    monkeypatch.setattr(module, "environment", lambda device, home: Environment(device=device, host="here", facts={}))
    facts = [
        environment_of(load([]).operator("softmax"), BenchOptions(device=device, plan=Plan(cache=kind)))
        for kind in (cache, "cold" if device == "cuda" else "warm")
    ]
    assert (facts[0].fingerprint != facts[1].fingerprint) == apart
