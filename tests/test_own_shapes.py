"""Shapes and configs of one's own: what is understood, what is refused and in which words, and what records keep."""

import json

import pytest

from opforge.core.definition.implementation import Config
from opforge.core.definition.own_shapes import (
    LAYOUTS,
    ensure_taken,
    operators_of,
    parse_shape,
    shapes_of,
    workload_named,
)
from opforge.core.evidence.record import CONFIG
from opforge.core.language.errors import UsageError
from opforge.gate.baseline import select_records
from opforge.registry import load
from opforge.runner import Isolated
from opforge.runner.worker.arena import LAYOUTS as MADE
from opforge.store import Store
from opforge.timing import Plan
from opforge.tuning import TuneOptions
from opforge.tuning.tune import _todo
from opforge.verify.cases.hidden import QUICK
from opforge.workbench import BenchOptions, bench, steps, verify_all, workloads_for
from opforge.workbench.configs import configs_of, ensure_taken as ensure_config, parse_config

REGISTRY = load([])
SOFTMAX, MATMUL = REGISTRY.operator("softmax"), REGISTRY.operator("matmul")


@pytest.mark.parametrize(
    ("operator", "text", "axes", "name"),
    [
        ("softmax", "cols=1000, lead=2x3", {"lead": (2, 3), "cols": 1000}, "lead=2x3,cols=1000"),
        ("softmax", "lead=(),cols=5", {"lead": (), "cols": 5}, "lead=(),cols=5"),
        ("layernorm", "lead=4,cols=8,eps=1e-3", {"lead": (4,), "cols": 8}, "lead=4,cols=8,eps=0.001"),
        ("layernorm", "lead=4,cols=8,eps=1e-5", {"lead": (4,), "cols": 8}, "lead=4,cols=8"),
        (
            "matmul",
            "m=4,n=8,k=2,layout=contiguous+transposed",
            {"m": 4, "k": 2, "n": 8},
            "m=4,k=2,n=8,layout=contiguous+transposed",
        ),
    ],
)
def test_a_shape_is_its_name(operator, text, axes, name):
    definition = REGISTRY.operator(operator)
    workload = parse_shape(definition, text)
    assert workload.name == name and dict(workload.axes) == axes
    assert workload_named(definition, name) == workload
    assert workloads_for(definition, BenchOptions(workloads=(name,))) == (workload,)


def test_derived_axes_follow():
    linear = REGISTRY.operator("matmul_fp8")
    whole = parse_shape(linear, "m=8,n=16,k=32").axes
    assert set(whole) == set(linear.axes)
    name, value = next((name, value) for name, value in whole.items() if name in linear.derived)
    with pytest.raises(UsageError, match=f"{name}=.*follows from the others"):
        parse_shape(linear, f"m=8,n=16,k=32,{name}={(value if isinstance(value, int) else value[0]) + 1}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rows=4096,cols=1000", "no axis 'rows'"),
        ("col=4,lead=2", "Did you mean 'cols'"),
        ("lead=2x3", "leaves out cols"),
        ("lead=2,cols=5x5", "cols is one axis"),
        ("lead=2,cols=-5", "no size: write a whole number"),
        ("lead=2,cols=1e3", "no size: write a whole number"),
        ("lead=2,cols=²", "no size"),
        ("lead=2,3,cols=4", "'3' in --shape"),
        ("lead=2,cols=4,cols=5", "gives cols twice"),
        ("lead=2,cols=" + "9" * 5000, "too large"),
        ("lead=2,cols=4,layout=diagonal", "no layout of softmax"),
    ],
)
def test_what_is_no_shape_is_told_the_axes_and_an_example(text, said):
    with pytest.raises(UsageError) as told:
        parse_shape(SOFTMAX, text)
    assert said in str(told.value) and len(str(told.value)) < 6000
    if "layout" not in text:
        assert "Axes of softmax: *lead, cols" in str(told.value)
        example = str(told.value).rpartition("--shape ")[2]
        assert parse_shape(SOFTMAX, example).name == example


def test_a_constraint_is_named():
    fp8 = REGISTRY.operator("linear_fp8")
    for text in ("rows=4,n=8,k=0", "rows=4,n=8,k=16"):
        workload = parse_shape(fp8, text)
        broken = [fp8.violated(workload.axes, dtype, fp8.scalar_values({})) for dtype in fp8.dtypes]
        if all(broken):
            with pytest.raises(UsageError, match="does not take"):
                ensure_taken(fp8, workload)
        else:
            ensure_taken(fp8, workload)


def test_files_of_shapes(tmp_path):
    table, listed = tmp_path / "s.csv", tmp_path / "s.json"
    table.write_text("cols,lead\n1000,2x3\n7,4\n")
    listed.write_text(json.dumps(["lead=4,cols=7", {"lead": [2, 3], "cols": 1000}]))
    names = {workload.name for workload in shapes_of(SOFTMAX, [str(table)])}
    assert names == {"lead=2x3,cols=1000", "lead=4,cols=7"}
    assert {workload.name for workload in shapes_of(SOFTMAX, [str(listed), "lead=4,cols=7"])} == names
    table.write_text("cols,lead\n1000,2x3\nseven,4\n")
    with pytest.raises(UsageError, match=r"s\.csv, shape 2: cols='seven' is no size"):
        shapes_of(SOFTMAX, [str(table)])
    for text in ("{}", "[]", "[1]", "nothing"):
        listed.write_text(text)
        with pytest.raises(UsageError, match="whose first line is lead,cols"):
            shapes_of(SOFTMAX, [str(listed)])


def test_a_file_may_have_shapes_for_each_operator(tmp_path):
    """As `opforge model analyse --workloads` writes it: of a file for several operators each takes its own."""
    file = tmp_path / "model.json"
    file.write_text(json.dumps({"softmax": ["lead=2,cols=7"], "matmul": [{"m": 4, "n": 8, "k": 2}]}))
    assert operators_of([str(file), "lead=2,cols=7", str(tmp_path / "none.json")]) == ("softmax", "matmul")
    assert [workload.name for workload in shapes_of(SOFTMAX, [str(file)])] == ["lead=2,cols=7"]
    assert [workload.name for workload in shapes_of(MATMUL, [str(file)])] == ["m=4,k=2,n=8"]
    with pytest.raises(UsageError, match=r"no shapes of layernorm. It has those of: softmax, matmul"):
        shapes_of(REGISTRY.operator("layernorm"), [str(file)])
    own = {"softmax": ("lead=2,cols=7",)}
    with Store.open(f"sqlite:///{tmp_path / 'records.sqlite'}") as store:
        asked = list(steps(REGISTRY, ["softmax"], ["float32"], "cpu", store, own))
    assert [step.options.workloads for step in asked] == [("lead=2,cols=7",)]


def test_every_layout_that_may_be_asked_for_can_be_made():
    assert set(LAYOUTS) <= set(MADE)


def test_configs_reach_those_that_have_the_tunables():
    naive, eager = REGISTRY.implementation("matmul", "triton_naive"), REGISTRY.implementation("matmul", "torch_eager")
    asked = [parse_config("ROWS=8"), parse_config("ROWS=16,num_warps=2")]
    assert [config.as_dict()["ROWS"] for config in configs_of(naive, asked)] == [8, 16]
    assert configs_of(eager, asked) == (None,)
    ensure_config([naive, eager], asked)
    for text, said in (
        ("ROWZ=8", "Did you mean 'ROWS'"),
        ("ROWS=7", r"not in its space \(1, 8"),
        ("ROWS", "not NAME=VALUE"),
    ):
        with pytest.raises(UsageError, match=said):
            ensure_config([naive], [parse_config(text)])


def test_a_kernel_that_is_wrong_at_one_shape_alone_is_caught_there(guest):
    """And its Pass at another shape is nobody's evidence."""
    home = guest(eager="def run(x, bias):\n    return x + bias * (x.shape[-1] != 37)\n")
    registry = load([home])
    options = BenchOptions(
        dtypes=("float32",), implementations=("torch_eager",), workloads=("rows=3,cols=36", "rows=3,cols=37")
    )
    with Isolated() as host:
        right, wrong = verify_all(registry, ["guest_add"], options, host)
    assert (right.workload, type(right.verdict).__name__, right.trial) == ("rows=3,cols=36", "Pass", True)
    assert (wrong.workload, type(wrong.verdict).__name__) == ("rows=3,cols=37", "Mismatch")
    assert {item.case.layout for item in right.verdict.checked} == {"contiguous", "fenced"}
    assert {item.case.distribution for item in right.verdict.checked} > {"normal", "exponents"}


@pytest.mark.campaign
def test_configs_are_timed_side_by_side_and_are_no_baseline():
    options = BenchOptions(
        dtypes=("float32",),
        implementations=("cpp_blocked",),
        configs=(Config((("BLOCK", 24),)), Config((("BLOCK", 12),))),
        workloads=("m=33,k=17,n=20",),
        effort=QUICK,
        plan=Plan(samples=5, budget_s=0.05),
    )
    with Isolated() as host:
        records = list(bench(REGISTRY, ["matmul"], options, host))
    assert {record.config.as_dict()["BLOCK"]: CONFIG in record.environment.facts for record in records} == {
        12: True,
        24: False,
    }
    assert all(record.timing is not None and record.workload == "m=33,k=17,n=20" for record in records)
    chosen, refused = select_records(records)
    assert [record.config.as_dict()["BLOCK"] for record in chosen] == [24]
    assert len(refused) == 1 and "not its default" in refused[0]


def test_a_shape_is_tuned_like_a_workload():
    named = ("lead=4,cols=7", SOFTMAX.workloads[0].name)
    assert [workload.name for _, workload in _todo(SOFTMAX, TuneOptions(workloads=named, dtypes=("float32",)))] == [
        *named
    ]
