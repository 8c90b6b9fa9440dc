"""The main job where several kernels are verified and bound at once, as on a machine with a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from opforge.core.evidence.verdict import Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.store import Store
from opforge.timing import Plan
from opforge.verify.cases.hidden import QUICK
from opforge.workbench import BenchOptions, bench, environment_of, steps


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
    # one dtype after the other, and within it the fastest first, whichever that is today
    assert [record.dtype for record in records] == ["float32", "float32", "bfloat16", "bfloat16"]
    assert all({record.backend for record in pair} == {"cpp", "torch"} for pair in (records[:2], records[2:]))
    times = [record.timing.median_s for record in records if isinstance(record.verdict, Pass) and record.timing]
    assert len(times) == 4
    assert times[0] <= times[1] and times[2] <= times[3]
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
    monkeypatch.setattr(opforge.machine, "ensure_ceilings", lambda device, say: None)
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

    from opforge.core.evidence.record import Environment

    module = sys.modules["opforge.workbench.bench"]
    monkeypatch.setattr(module, "environment", lambda device, home: Environment(device=device, host="here", facts={}))
    facts = [
        environment_of(load([]).operator("softmax"), BenchOptions(device=device, plan=Plan(cache=kind)))
        for kind in (cache, "cold" if device == "cuda" else "warm")
    ]
    assert (facts[0].fingerprint != facts[1].fingerprint) == apart


def test_a_hopeless_time_is_audited_briefly_and_only_beside_one_that_stands(monkeypatch):
    """A naive product of 0.35 s was called 120 times more to find out whether it could have been slower still. The
    fastest is asked first; a baseline is asked whole unless its calls are long; beside a time that is refused nobody is
    hopeless.
    """
    from opforge.core.evidence.timing import Timing
    from opforge.core.evidence.verdict import Broken, Pass

    benching = sys.modules[bench.__module__]

    def timed(median_s):
        return Timing(samples_s=(median_s,) * 5, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())

    registry = load()
    names = ("cpp_blocked", "torch_eager", "torch_compile", "cpp_naive")
    proof = Pass(checked=(), not_taken=(), isolation="none")
    seconds = {"cpp_blocked": 0.01, "torch_eager": 0.05, "torch_compile": 0.2, "cpp_naive": 0.021}

    def audited(refused):
        asked = []
        items = [
            SimpleNamespace(
                point=SimpleNamespace(implementation=SimpleNamespace(name=name, backend=name.split("_")[0])),
                candidates=lambda name=name: [SimpleNamespace(name=name, terms="call")],
                proof=proof,
                worker=SimpleNamespace(struck=lambda: None),
            )
            for name in reversed(names)
        ]
        setting = SimpleNamespace(timed=lambda given, plan: [timed(seconds[each.name]) for each in given])

        def believed(setting, candidate, timing, unseen, far, brief):
            asked.append((candidate.name, brief))
            return Broken(case=None, dtype="", reason="", isolation="") if candidate.name == refused else proof

        job = SimpleNamespace(
            cases=SimpleNamespace(prepare=lambda *given: None, forget=lambda case: None),
            pool=None, clock=None, operator=registry.operator("matmul"),
            options=SimpleNamespace(terms=("call",), device="cpu", plan=None),
            record=lambda point, case, dtype, verdict, timing: SimpleNamespace(timing=timing),
        )  # fmt: skip
        monkeypatch.setattr(benching, "Ready", SimpleNamespace)
        monkeypatch.setattr(benching, "Setting", lambda **given: setting)
        monkeypatch.setattr(benching, "bind", lambda setting, points: items)
        monkeypatch.setattr(benching, "leave", lambda *given: None)
        monkeypatch.setattr(benching, "far_values", lambda setting: None)
        monkeypatch.setattr(benching, "unseen_contents", lambda setting: [])
        monkeypatch.setattr(benching, "believed", believed)
        monkeypatch.setattr(benching, "_within_limits", nobody_is_ruled_out)
        records = list(benching._time_workload(job, registry.operator("matmul").workloads[0], "float32", ()))
        briefly = [benching.BRIEFLY in record.timing.conditions for record in records]
        assert briefly == [brief for _, brief in asked]
        return asked

    in_order = ("cpp_blocked", "cpp_naive", "torch_eager", "torch_compile")
    assert audited("") == list(zip(in_order, (False, True, False, True), strict=True))
    # the naive one stands, and the long one is hopeless beside it
    assert audited("cpp_blocked") == list(zip(in_order, (False, False, False, True), strict=True))


def nobody_is_ruled_out(job, workload, dtype, points):
    yield from ()
    return []


def test_qualify_asks_on_a_cpu_who_may_win_there(tmp_path):
    """TileLang's C target has one thread and a slow compiler: it is not asked beside C++."""
    registry = load([])
    backends = {item.name: item.backend for item in registry.implementations("softmax")}
    with Store.open(tmp_path / "records.sqlite") as store:
        (step,) = steps(registry, ["softmax"], (), "cpu", store)
    assert "tilelang" in backends.values()
    assert {backends[name] for name in step.options.implementations} == {"torch", "cpp"}
