"""A sweep over several axes, shapes and tunables: what it spans and refuses, its table, its CSV, its picture."""

import csv
import io
from types import SimpleNamespace

import pytest

from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.registry import load
from opforge.report.sweep_chart import sweep_csv, sweep_picture
from opforge.workbench.sweep_points import best_of, lines_for_picture, lines_of, parse_swept, spanned

REGISTRY = load([])
SOFTMAX = REGISTRY.operator("softmax")
ITEMS = REGISTRY.implementations("softmax")
BASE = SOFTMAX.workloads[0]


def axes(*texts):
    return [parse_swept(SOFTMAX, ITEMS, text) for text in texts]


def test_a_grid_takes_every_pair_and_zip_takes_them_together():
    swept = axes("lead=8,2x3", "cols=64:128:64")
    shapes, configs = spanned(SOFTMAX, BASE, swept, zipped=False)
    grid = ["lead=8,cols=64", "lead=8,cols=128", "lead=2x3,cols=64", "lead=2x3,cols=128"]
    assert [workload.name for workload in shapes] == grid and configs == ()
    assert shapes[2].axes["lead"] == (2, 3)
    together, _ = spanned(SOFTMAX, BASE, swept, zipped=True)
    assert [workload.name for workload in together] == [grid[0], grid[3]]


def test_tunables_and_parameters_are_axes_too():
    _, configs = spanned(SOFTMAX, BASE, axes("tile=1024,2048", "per_thread=8,16"), zipped=False)
    assert [str(config) for config in configs][:2] == ["tile=1024, per_thread=8", "tile=1024, per_thread=16"]
    assert len(configs) == 4
    norm = REGISTRY.operator("layernorm")
    swept = parse_swept(norm, (), "eps=1e-6,1e-3")
    shapes, _ = spanned(norm, norm.workloads[0], [swept], zipped=False)
    assert [workload.scalars["eps"] for workload in shapes] == [1e-6, 1e-3]


@pytest.mark.parametrize(
    ("texts", "zipped", "said"),
    [
        (("depth=1,2",), False, "no axis 'depth'.*It has: lead, cols"),
        (("lead=two",), False, "Write them in a list: --axis lead=8,2x3"),
        (("cols=1,2", "cols=3"), False, "gives cols twice.*Write its values in one"),
        (("cols=1,2", "lead=3"), True, "as many values each .cols: 2, lead: 1.*every pair"),
        (("cols=1,2",), True, "--zip needs two axes"),
        (("lead=" + ",".join(map(str, range(1, 60))), "cols=1:60:1"), False, "3540 points.*or --zip"),
    ],
)
def test_what_spans_nothing_is_refused_with_the_next_step(texts, zipped, said):
    with pytest.raises(UsageError, match=said):
        spanned(SOFTMAX, BASE, axes(*texts), zipped=zipped)


def record(shape, name, median, backend="cpp"):
    timing = SimpleNamespace(median_s=median, interval_s=(0.9 * median, 1.1 * median))
    cost = SimpleNamespace(flops=4e6, bytes=8e6, intensity=0.5)
    return SimpleNamespace(
        workload=shape, implementation=name, config="default", backend=backend, timing=timing, cost=cost, roof_s=1e-3
    )


def test_lines_state_rates_registers_and_why_there_are_none():
    kernels = (
        SimpleNamespace(registers=40, residency=SimpleNamespace(fraction=0.75)),
        SimpleNamespace(registers=64, residency=None),
    )

    def inspect(asked):
        if asked.implementation == "triton_b":
            raise EnvironmentLacks("cuobjdump is missing. Install it.")
        return SimpleNamespace(kernels=kernels)

    asked = [record("cols=64", "triton_a", 2e-3, "triton"), record("cols=64", "triton_b", 2e-3, "triton")]
    a, b, c = lines_of([*asked, record("cols=64", "cpp_c", 4e-3)], inspect)
    assert (a.gflops, a.gbytes_per_s, a.intensity, a.of_roof) == (2.0, 4.0, 0.5, 0.5)
    assert (a.registers, a.occupancy, a.note) == (64, 0.75, "")
    assert (b.registers, b.note) == (None, "cuobjdump is missing. Install it.")
    assert (c.registers, c.occupancy, c.note) == (None, None, "")
    (row, *_), rows = csv.reader(io.StringIO(sweep_csv([vars(a)]))), list(csv.reader(io.StringIO(sweep_csv([vars(b)]))))
    assert row[:4] == ["shape", "implementation", "config", "seconds"] and rows[1][-3:] == ["", "", b.note]


def test_the_best_of_a_shape_has_those_beside_it_that_cannot_be_told_apart():
    lines = lines_of([record("cols=64", "a", 2.1e-3), record("cols=64", "b", 2e-3), record("cols=64", "c", 4e-3)])
    assert [line.implementation for line in best_of(lines)["cols=64"]] == ["b", "a"]


def test_the_picture_has_a_line_for_each_value_of_the_other_axes():
    shapes, _ = spanned(SOFTMAX, BASE, axes("cols=64,128", "lead=8,2x3"), zipped=False)
    lines = lines_of([record(workload.name, "cpp_a", 1e-3) for workload in shapes])
    along = lines_for_picture(lines, "cols", {workload.name: workload for workload in shapes})
    assert {label: [size for size, _ in points] for label, points in along.items()} == {
        "cpp_a lead=8": [64.0, 128.0],
        "cpp_a lead=2x3": [64.0, 128.0],
    }
    times = {label: [(size, line.seconds) for size, line in points] for label, points in along.items()}
    assert sweep_picture("softmax", "cols", times, {}).count("<circle") == 4


@pytest.mark.parametrize("json", [False, True])
def test_points_that_have_no_time_are_named_with_the_reason(capsys, json):
    """A point whose kernel broke was left out of the table, which looked whole."""
    from opforge.cli.sweep import _show_points

    timed = lines_of([record("lead=8,cols=64", "cpp_twopass", 2e-6)])
    _show_points(timed, ["softmax/cpp_twopass float32: wrong in case lead=2,cols=64"], json=json, dtype="float32")
    said = capsys.readouterr().out
    assert "lead=8,cols=64" in said and "wrong in case lead=2,cols=64" in said
