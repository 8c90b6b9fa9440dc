"""Statistics beside the median, and energy where a counter can be read."""

import dataclasses
import io
import random
import statistics
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from opforge.cli import app
from opforge.core.evidence.record import from_json, to_json
from opforge.report.tabular import csv_text, operations_per_joule, rows
from opforge.timing import Candidate, Plan, measure
from opforge.timing.conditions import Nvml
from opforge.timing.energy import Meter, NoMeter, meter
from simulated import record
from test_timing import PROOF, FakeNvml, Machine


def powercap(root, **packages):
    """A /sys with these RAPL domains and their counters, in microjoules."""
    for name, (kind, count) in packages.items():
        folder = root / "sys/class/powercap" / name.replace("_", ":")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(f"{kind}\n")
        (folder / "max_energy_range_uj").write_text("1000000\n")
        (folder / "energy_uj").write_text(f"{count}\n")


def test_rapl_counts_packages_and_turns_over(tmp_path):
    """Parts of a package are in it already; a counter of 32 bits begins again every few minutes."""
    domains = {"intel-rapl_0": ("package-0", 900_000), "intel-rapl_1": ("package-1", 0)}
    powercap(tmp_path, **domains, **{"intel-rapl_0_0": ("core", 7_000_000)})
    counter = meter("cpu", root=tmp_path)
    assert isinstance(counter, Meter) and counter.name == "RAPL"
    assert counter.joules() == pytest.approx(0.9)
    powercap(tmp_path, **{"intel-rapl_0": ("package-0", 100_000), "intel-rapl_1": ("package-1", 50_000)})
    assert counter.joules() == pytest.approx(1.15)
    (tmp_path / "sys/class/powercap/intel-rapl:1/energy_uj").unlink()
    assert counter.joules() is None


def test_where_no_energy_can_be_read_it_is_said_with_what_would_help(tmp_path):
    found = meter("cpu", root=tmp_path)
    assert isinstance(found, NoMeter) and "shows no RAPL counter" in found.reason
    powercap(tmp_path, **{"intel-rapl_0": ("package-0", "a word")})
    found = meter("cpu", root=tmp_path)
    assert isinstance(found, NoMeter) and "chmod a+r /sys/class/powercap/*/energy_uj" in found.reason
    found = meter("cuda", nvml=Nvml(FakeNvml(), None))
    assert isinstance(found, NoMeter) and "no counter" in found.reason
    assert isinstance(meter("npu"), NoMeter)


def test_nvml_counts_in_joules():
    library = FakeNvml()
    library.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 123_456
    counter = meter("cuda", nvml=Nvml(library, None))
    assert isinstance(counter, Meter) and counter.name == "NVML" and counter.joules() == pytest.approx(123.456)


def measured(machine, counter, plan):
    candidate = Candidate(name="k", proof=PROOF, ask=machine.ask, launch=1)
    return measure([candidate], plan, overhead_s=0.0, clock=machine.clock, order=random.Random(1), meter=counter)["k"]


def test_the_energy_of_a_call_is_that_of_many_in_a_row():
    """100 W for 2 ms are 0.2 J; the pass is no sample, and is not made where it is not asked for."""
    machine = Machine(lambda call: 2e-3)
    counter = Meter(name="RAPL", joules=lambda: 100.0 * machine.now)
    timing = measured(machine, counter, Plan(energy_s=1.0))
    assert timing.energy_j == pytest.approx(0.2, rel=0.01)
    assert any("energy by RAPL, of 501 calls" in words for words in timing.conditions)
    before = len(machine.asked)
    assert measured(machine, counter, Plan()).energy_j is None
    assert len(timing.samples_s) < 500 and before < 200
    still = Meter(name="RAPL", joules=lambda: 1.0)
    assert measured(Machine(lambda call: 2e-3), still, Plan(energy_s=1.0)).energy_j is None


def test_the_table_shows_statistics_of_every_sample(tmp_path):
    """By their definitions, an outlier included; the column of energy stands where it was measured."""
    plain = record(1e-3)
    samples = (1e-3, 2e-3, 2e-3, 9e-3)
    one = dataclasses.replace(plain, timing=dataclasses.replace(plain.timing, samples_s=samples))
    assert "mean" not in rows([one]).columns
    grid = rows([one], statistics=True)
    told = dict(zip(grid.columns, grid.rows[0].cells, strict=True))
    assert (told["median"], told["min"], told["mean"], told["samples"]) == ("2.00 ms", "1.00 ms", "3.50 ms", "4")
    std = statistics.pstdev(samples)
    assert told["std"] == f"{1e3 * std:.2f} ms" and told["RSD"] == "91%" and "GOPS/W" not in told
    assert grid.columns.index("min") == grid.columns.index("median") + 1
    with_energy = dataclasses.replace(
        one,
        cost=dataclasses.replace(one.cost, flops=4_000_000_000),
        timing=dataclasses.replace(one.timing, energy_j=0.5),
    )
    told = dict(
        zip(*(lambda grid: (grid.columns, grid.rows[0].cells))(rows([with_energy], statistics=True)), strict=True)
    )
    assert told["GOPS/W"] == "8" and operations_per_joule(with_energy) == 8e9
    assert from_json(to_json(with_energy)) == with_energy and "energy_j" not in to_json(one)["timing"]
    head, line = csv_text([with_energy]).splitlines()
    cells = dict(zip(head.split(","), line.split(","), strict=False))
    assert float(cells["mean_s"]) == pytest.approx(3.5e-3) and float(cells["min_s"]) == 1e-3
    # no time, no statistics
    assert rows([dataclasses.replace(one, timing=None)], statistics=True).rows[0].cells[8:12] == ("",) * 4


def test_bench_shows_them_on_request(guest, monkeypatch, tmp_path):
    home = guest(plain="def run(x, bias):\n    return x + bias\n")
    verb = [
        "bench",
        "guest_add",
        "--device",
        "cpu",
        "--implementation",
        "torch_plain",
        "--quick",
        "--budget",
        "0.1",
        "--stats",
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["opforge", "--home", str(home), *verb])
    monkeypatch.setattr("opforge.timing.energy.meter", lambda device: NoMeter(reason="Energy is not measured: a test"))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code in (0, None), err.getvalue()
    head = out.getvalue().splitlines()[0].split()
    assert head[head.index("median") :][:6] == ["median", "min", "mean", "std", "RSD", "samples"]
    assert "GOPS/W" not in head and err.getvalue().count("Energy is not measured") == 1
