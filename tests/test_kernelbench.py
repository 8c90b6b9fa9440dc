"""Task files in KernelBench's form: read on small sizes, written, run as a suite; and the figures that suites are told
by.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.evidence.verdict import Pass, Unsupported
from opforge.core.language.errors import UsageError
from opforge.forge import files_of, from_formula
from opforge.forge.program.definition import NamedWorkload
from opforge.forge.program.evaluate import evaluate
from opforge.forge.program.families import layout_of
from opforge.forge.suites.kernelbench import name_of, read_task, write_task
from opforge.forge.suites.suite import TaskResult, judged, lines, summary
from opforge.forge.suites.tasks import tasks_at

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "kernelbench"
HUGE = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """
    A layer with a bias and ReLU.

    Args: none
    """
    def __init__(self, wide, narrow, slope=0.1):
        super().__init__()
        self.linear = nn.Linear(wide, narrow)
        self.slope = slope

    def forward(self, x):
        return torch.nn.functional.leaky_relu(self.linear(x), self.slope)

batch, wide, narrow = 1048576, 393216, 65536

def get_inputs():
    return [torch.rand(batch, wide)]

def get_init_inputs():
    return INIT
'''


def task(tmp_path, text, name="7_Layer_.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("init", ["[wide, narrow]", "[[wide], {'narrow': narrow}]"])
def test_a_task_of_terabytes_is_read_without_them(init, tmp_path):
    path = task(tmp_path, HUGE.replace("INIT", init))
    found = read_task(path, name_of(path))
    assert (found.name, found.about) == ("layer_7", "A layer with a bias and ReLU.")
    assert layout_of(found.program()).family == "product"
    large, small = found.workloads
    assert sorted(large.axes.values()) == [65536, 393216, 1048576]
    assert large.scale == "gpu"
    for item in found.inputs:
        assert torch.Size([small.axes[axis] for axis in item.axes]).numel() <= 1 << 20
    # cases of its own beside the task's shape, in three dtypes
    assert "empty_rows" in files_of(found)["op.py"]
    assert found.dtypes == ("float32", "float16", "bfloat16")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Model", "class Other", "has no Model"),
        ("torch.nn.functional.leaky_relu(self.linear(x), self.slope)", "torch.sort(x).values", "aten.sort"),
        ("nn.Linear(wide, narrow)", "nn.GroupNorm(7, wide)", "cannot be made on small sizes"),
        ("import torch\n", "import torch(\n", "no task that can be read"),
    ],
)
def test_what_is_no_task_or_has_no_formula_is_told(old, new, message, tmp_path):
    path = task(tmp_path, HUGE.replace("INIT", "[wide, narrow]").replace(old, new))
    with pytest.raises(UsageError, match=message):
        read_task(path, "layer")


@pytest.mark.parametrize(
    ("formula", "parameters"),
    [
        ("out = where(x[a, b] < t, x * s[b], exp(-abs(x)))", {"t": 0.5}),
        ("y = (x[a, b] - mean(x)) * rsqrt(var(x) + eps) * w[b]", {"eps": 1e-5}),
        ("y[a] = max(x[a, b]) + sum(x * w[b])", {}),
        ("c = relu(p[a, k] @ q[k, b] + bias[b]) * r_s[a]", {}),
        ("c = tanh(p[a, k] @ q[b, k])", {}),
    ],
)
def test_a_definition_written_as_a_task_and_read_again_computes_the_same(formula, parameters, tmp_path):
    given = from_formula("made", formula, parameters)
    again = read_task(task(tmp_path, write_task(given)), "made")
    sizes = {"a": 3, "b": 5, "k": 4}
    tensors = {
        item.name: torch.randn([sizes[axis] for axis in item.axes], dtype=torch.float64) for item in given.inputs
    }
    assert [item.name for item in again.inputs] == [item.name for item in given.inputs]
    first = next(iter(evaluate(given.program(), tensors, parameters).values()))
    second = next(iter(evaluate(again.program(), tensors, {}).values()))
    torch.testing.assert_close(first, second)


@st.composite
def formulas(draw):
    """A formula of elements, of rows or of a product, with its parameters."""
    shape, width = draw(st.sampled_from([("a, b", "b"), ("a, c, b", "b"), ("a, b", "a, b")]))
    kind = draw(st.sampled_from(["elements", "rows", "product"]))
    head = {"elements": f"x[{shape}]", "rows": f"x[{shape}]", "product": "p[a, k] @ q[k, b]"}[kind]
    lines = [f"v0 = {head}" + (" * 1.0" if kind != "product" else "")]
    steps = draw(
        st.lists(
            st.sampled_from(["relu", "sigmoid", "tanh", "silu", "abs", "square", "sin", "cos", "softplus"]), max_size=3
        )
    )
    lines += [f"v{at + 1} = {step}(v{at})" for at, step in enumerate(steps)]
    last = f"v{len(steps)}"
    if kind == "rows":
        last = draw(st.sampled_from(["softmax({})", "{0} - mean({0})", "{0} * rsqrt(mean(square({0})) + 0.5)"])).format(
            last
        )
    ending = draw(st.sampled_from(["", f" * w[{width if kind != 'product' else 'b'}]", " + t", " * t - 1.5"]))
    lines.append(f"y = {last}{ending}")
    parameters = {"t": draw(st.floats(-2, 2).map(lambda value: round(value, 3)))} if " t" in ending else {}
    return "\n".join(lines), parameters


@pytest.mark.campaign
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(formulas(), st.lists(st.integers(33, 5000), min_size=4, max_size=4, unique=True))
def test_sixty_definitions_are_tasks_and_come_back(tmp_path, drawn, sizes):
    """Names of tensors, the task's sizes and the values: nothing is lost on the way to a file and back."""
    text, parameters = drawn
    given_ = from_formula("made", text, parameters)
    axes = dict(zip("abck", sizes, strict=True))
    used = {axis: axes[axis] for item in given_.inputs for axis in item.axes}
    work = NamedWorkload(name="w", axes=used, source="s", scale="gpu")
    again = read_task(task(tmp_path, write_task(replace(given_, workloads=(work,)))), "made")
    assert [item.name for item in again.inputs] == [item.name for item in given_.inputs]
    theirs = {
        axis: ours
        for one, two in zip(given_.inputs, again.inputs, strict=True)
        for ours, axis in zip(one.axes, two.axes, strict=True)
    }
    assert {theirs[axis]: size for axis, size in again.workloads[0].axes.items()} == used
    small = {"a": 3, "b": 5, "c": 2, "k": 4}
    tensors = {i.name: torch.randn([small[axis] for axis in i.axes], dtype=torch.float64) for i in given_.inputs}
    first = next(iter(evaluate(given_.program(), tensors, parameters).values()))
    second = next(iter(evaluate(again.program(), tensors, {}).values()))
    torch.testing.assert_close(first, second)


def test_a_number_that_follows_from_a_size_is_refused(tmp_path):
    """A constant of the file that is made small with the sizes would stand in the formula, and be wrong."""
    text = HUGE.replace("INIT", "[wide, narrow]").replace("self.slope)", "self.slope) / 65536")
    assert "65536" in read_task(task(tmp_path, text), "layer").formula.text
    named = text.replace("/ 65536", "/ narrow")
    with pytest.raises(UsageError, match="changes with its sizes"):
        read_task(task(tmp_path, named), "layer")


def test_the_ten_tasks_of_the_sources_are_read():
    tasks = tasks_at(EXAMPLES)
    assert [task.label.split("_")[0] for task in tasks] == [str(number) for number in range(1, 11)]
    families = [layout_of(task.prepare(task.name).definition.program()).family for task in tasks]
    assert {family: families.count(family) for family in families} == {"elementwise": 5, "rows": 3, "product": 2}


def record(name, backend, median_s, verdict=None, roof_s=1.0):
    timing = None if median_s is None else SimpleNamespace(median_s=median_s)
    passed = Pass(checked=(), not_taken=(), isolation="")
    return SimpleNamespace(
        implementation=name, backend=backend, timing=timing, verdict=verdict or passed, roof_s=roof_s
    )


def test_a_task_is_compared_with_the_best_of_pytorch_and_a_wrong_one_with_nothing():
    eager, compiled = record("torch_eager", "torch", 4.0), record("torch_compile", "compile", 3.0)
    found = judged("a", [eager, compiled, record("cpp_rows", "cpp", 2.0), record("triton_onchip", "triton", None)])
    assert (found.outcome, found.candidate, found.baseline) == ("correct", "cpp_rows", "torch_compile")
    assert (found.speed_up, found.roof) == (1.5, 0.5)
    wrong = type("Mismatch", (), {})()
    assert judged("a", [eager, record("cpp_rows", "cpp", 1.0), record("x", "triton", None, wrong)]).outcome == "wrong"
    refused = record("cpp_rows", "cpp", None, Unsupported(reason="no"))
    assert judged("a", [eager, refused]).reason == "no generated implementation passed here"
    assert judged("a", [eager, record("triton_onchip", "triton", None)]).speed_up is None


def test_the_figures_count_every_task():
    results = [
        TaskResult(task="a", outcome="correct", speed_up=4.0, roof=0.5),
        TaskResult(task="b", outcome="correct", speed_up=1.0, roof=0.25),
        TaskResult(task="c", outcome="wrong"),
        TaskResult(task="d", outcome="not generated", reason="no formula"),
    ]
    of = summary(results)
    assert (of.tasks, of.correct) == (4, 2)
    # exactly as fast is not faster
    assert dict(of.fast) == {1.0: 0.25, 1.2: 0.25, 2.0: 0.25}
    assert (of.median, of.geometric_mean) == (2.5, pytest.approx(2.0))
    assert next(iter(lines(results))) == "2 of 4 correct"
    assert summary([]).median is None


def test_the_command_exports_a_definition(tmp_path):
    path = tmp_path / "gated.yaml"
    path.write_text('formula: y = x * a\ninputs: {x: "rows_of cols"}\nparameters: {a: 1e-3}\n')
    answer = CliRunner().invoke(command_line(["suite"]), ["suite", "export", str(path)])
    assert answer.exit_code == 0, answer.output
    assert "class Model(nn.Module)" in answer.stdout
    for words in (["run", str(tmp_path / "nothing")], ["walk", str(tmp_path)]):
        assert isinstance(CliRunner().invoke(command_line(["suite"]), ["suite", *words]).exception, UsageError)


@pytest.mark.slow
def test_a_suite_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "store.sqlite"))
    task(tmp_path, (EXAMPLES / "8_range_of_rows.py").read_text(), "8_range_of_rows.py")
    task(tmp_path, HUGE.replace("INIT", "[wide]"), "9_broken.py")
    answer = CliRunner().invoke(command_line(["suite"]), ["suite", "run", str(tmp_path), "--budget", "0.1"])
    assert answer.exit_code == 0, answer.output
    assert "8_range_of_rows: correct;" in answer.stdout
    assert "9_broken: not generated; " in answer.stdout
    assert "1 of 2 correct" in answer.stdout


def test_a_task_writes_nowhere_and_reaches_nobody(tmp_path):
    """Its file is executed to be traced, behind the walls that compilers have."""
    hostile = HUGE.replace("INIT", "[wide, narrow]").replace(
        "import torch.nn as nn",
        f"import torch.nn as nn\nopen({str(tmp_path / 'written')!r}, 'w')\n",
    )
    with pytest.raises(UsageError, match=r"Read-only file system|Permission denied"):
        read_task(task(tmp_path, hostile), "hostile")
    connecting = HUGE.replace("INIT", "[wide, narrow]").replace(
        "import torch.nn as nn",
        "import socket, torch.nn as nn\nsocket.create_connection(('127.0.0.1', 9), 2)\n",
    )
    with pytest.raises(UsageError, match=r"Network is unreachable|Permission denied"):
        read_task(task(tmp_path, connecting), "connecting")
    assert not (tmp_path / "written").exists()
