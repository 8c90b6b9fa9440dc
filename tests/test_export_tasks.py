"""Operators written as tasks of flashinfer-trace and SOL-ExecBench: read again they compute the same; records become
traces that the benchmarks' own rules allow.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.evidence.verdict import Crash, Mismatch, Pass, Timeout, Unsupported
from opforge.core.language.errors import UsageError
from opforge.forge import from_formula
from opforge.forge.program.evaluate import evaluate
from opforge.forge.suites.export_calls import suite_files
from opforge.forge.suites.export_tasks import task_of, traces_of, with_solutions
from opforge.forge.suites.formats.documents import At
from opforge.forge.suites.formats.files import files_of_task, task_sets
from opforge.forge.suites.formats.nouns import FLASHINFER, SOL, Solution, Trace
from opforge.forge.suites.tasks import tasks_at
from opforge.forge.suites.traced_tasks import read_task_set

FORMULAS = [
    ("out = where(x[a, b] < t, x * s[b], exp(-abs(x)))", {"t": 0.5}),
    ("y = (x[*lead, b] - mean(x)) * rsqrt(var(x) + eps) * w[b]", {"eps": 1e-5}),
    ("y[a] = max(x[a, b]) + sum(x * w[b])", {}),
    ("c = relu(p[*lead, k] @ q[k, b] + bias[b])", {}),
    ("c = tanh(p[a, k] @ q[b, k])", {}),
]


def written(task, folder):
    for name, text in files_of_task(task).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (found,) = task_sets(folder)
    return found


@pytest.mark.parametrize("form", [FLASHINFER, SOL])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("formula", "parameters"), FORMULAS)
def test_a_definition_written_as_a_task_and_read_again_computes_the_same(form, dtype, formula, parameters, tmp_path):
    given = from_formula("made", formula, parameters)
    task = written(task_of(given, form, dtype), tmp_path)
    assert task.form == form
    again = read_task_set(task, "made").definition
    assert again.dtypes == (dtype,)
    sizes = {"a": 3, "b": 5, "k": 4, "lead": 3}
    tensors = {
        item.name: torch.randn([sizes[axis.lstrip("*")] for axis in item.axes], dtype=torch.float64)
        for item in given.inputs
    }
    assert [(item.name, item.axes) for item in again.inputs] == [
        (item.name, tuple(axis.lstrip("*") for axis in item.axes)) for item in given.inputs
    ]
    first = next(iter(evaluate(given.program(), tensors, parameters).values()))
    second = next(iter(evaluate(again.program(), tensors, {}).values()))
    torch.testing.assert_close(first, second)


def test_a_dtype_that_it_has_not_is_told():
    with pytest.raises(UsageError, match="has no float64"):
        task_of(from_formula("made", "y = x * 2"), SOL, "float64")


@pytest.fixture
def folder(tmp_path):
    answer = CliRunner().invoke(
        command_line(["new"]),
        [
            "new",
            "made",
            "--home",
            str(tmp_path),
            "--parameter",
            "t=0.5",
            "--formula",
            "y = relu(x[*lead, cols] - t) * w[cols]",
        ],
    )
    assert answer.exit_code == 0, answer.output
    return tmp_path / "made"


def definition_of(folder):
    from opforge.forge.read.documents import read_document

    return read_document(folder / "definition.md", "made")


def test_kernels_become_solutions_that_are_called_as_the_benchmark_calls_them(folder):
    definition = definition_of(folder)
    task, reasons = with_solutions(task_of(definition, FLASHINFER), folder, definition)
    assert [one.name for one in task.solutions] == ["torch_definition", "torch_eager", "triton_tiles"]
    assert len(reasons) == 1
    assert "cpp_rows.cpp" in reasons[0]
    _, eager, tiles = task.solutions
    assert (eager.spec.language, eager.spec.destination_passing_style) == ("python", False)
    assert (tiles.spec.language, tiles.spec.entry_point) == ("triton", "triton_tiles.py::solution")
    assert tiles.spec.dependencies == ("torch", "triton", "opforge")
    space = {}
    exec(eager.sources[0].content, space)
    x, w = torch.randn(2, 3), torch.randn(3)
    torch.testing.assert_close(space["run"](x, w, 0.5), (x - 0.5).relu() * w)
    calls = []
    text = tiles.sources[0].content
    space = {"launch": lambda *tensors, **config: calls.append((len(tensors), config)), "DEFAULT": {"TILE": 1}}
    exec(text[text.index("def solution") :], space)
    space["solution"](x, w, 0.5, torch.empty(2, 3))
    assert calls == [(3, {"t": 0.5, "TILE": 1})]
    sol, _ = with_solutions(task_of(definition, SOL), folder, definition)
    assert sol.solutions[0].spec.languages == ("pytorch",)
    for one in sol.solutions:
        assert Solution.read(one.document(), At("s")).document() == one.document()


def record(name, verdict, median_s=None, dtype="float32", axes=None, run="r"):
    return SimpleNamespace(
        operator="made",
        implementation=name,
        dtype=dtype,
        axes=axes or {"lead": (1024,), "cols": 1024},
        run=run,
        workload="laptop",
        verdict=verdict,
        timing=None if median_s is None else SimpleNamespace(median_s=median_s),
        device="a-cpu",
        environment=SimpleNamespace(facts={"version.torch": "2.13.0", "cpu.model": "x"}),
        created_at="2026-11-24T12:00:00+00:00",
    )


def passed(*errors):
    checked = tuple(
        SimpleNamespace(
            case=SimpleNamespace(distribution=distribution),
            metrics=(SimpleNamespace(max_abs=error, max_rel=error / 2),),
        )
        for distribution, error in errors
    )
    return Pass(checked=checked, not_taken=(), isolation="")


def test_records_become_traces_by_the_benchmarks_rules(folder):
    definition = definition_of(folder)
    task, _ = with_solutions(task_of(definition, FLASHINFER), folder, definition)
    wrong = Mismatch(
        case=None, dtype="float32", output="y", index=(0,), expected=0.0, actual=1.0, tolerance=0.1, wrong=1, total=2,
        law=None, cause="", metrics=None, isolation="",
    )  # fmt: skip
    fine = passed(("normal", 1e-3), ("large", 1e30))
    records = [
        record("torch_eager", fine, 4e-3),
        record("triton_tiles", fine, 1e-3),
        record("triton_tiles", wrong),
        record("triton_tiles", Crash(case=None, dtype="float32", status=-11, stderr="", isolation="")),
        record("triton_tiles", Timeout(case=None, dtype="float32", limit_s=1.0, isolation="")),
        # nothing to say in this form: not timed, not run, no solution, another dtype, sizes that no workload has
        record("triton_tiles", fine),
        record("triton_tiles", Unsupported(reason="no GPU")),
        record("cpp_rows", fine, 1e-3),
        record("triton_tiles", fine, 1e-3, dtype="float16"),
        record("triton_tiles", fine, 1e-3, axes={"lead": (3,), "cols": 5}),
        # another run has no time of the reference beside it
        record("triton_tiles", fine, 2e-3, run="later"),
    ]
    found = traces_of(task, records)
    documents = [json.loads(json.dumps(one.document())) for one in found]
    assert [one["evaluation"]["status"] for one in documents] == [
        "PASSED", "PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "TIMEOUT", "PASSED",
    ]  # fmt: skip
    second = documents[1]["evaluation"]
    assert second["performance"] == {"latency_ms": 1.0, "reference_latency_ms": 4.0, "speedup_factor": 4.0}
    assert second["correctness"] == {"max_relative_error": 5e-4, "max_absolute_error": 1e-3}
    assert second["environment"] == {"hardware": "a-cpu", "libs": {"torch": "2.13.0"}}
    assert documents[2]["evaluation"]["correctness"]["max_relative_error"] == "Infinity"
    # a time that nobody took is not there, rather than 0
    assert documents[5]["evaluation"]["performance"] == {"latency_ms": 2.0}
    assert all(one["workload"]["uuid"] == task.workloads[0].workload.uuid for one in documents)
    for one in documents:
        assert Trace.read(one, At("t")).document() == one


def test_the_command_writes_a_folder_once(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "store.sqlite"))

    def export(*words):
        return CliRunner().invoke(command_line(["suite"]), ["suite", "export", *words])

    definition, out = str(folder / "definition.md"), str(tmp_path / "out")
    for words, message in (
        ([definition, "--as", "sol"], "Did you mean|No form of tasks"),
        ([definition, "--as", SOL], "--out FOLDER"),
        ([str(folder / "op.py")], "is no definition"),
        ([str(tmp_path / "nothing.md")], "is no definition"),
    ):
        error = export(*words).exception
        assert isinstance(error, UsageError)
        assert any(part in str(error) for part in message.split("|"))
    answer = export(definition, "--as", SOL, "--out", out)
    assert answer.exit_code == 0, answer.output
    assert "left out: cpp_rows.cpp" in answer.stdout
    (task,) = task_sets(Path(out))
    assert (task.form, len(task.solutions), task.traces) == (SOL, 3, ())
    again = export(definition, "--as", SOL, "--out", out)
    assert "exists already" in str(again.exception)
    # one form to another, through a definition
    file = f"{out}/made/definition.json"
    shown = export(file)
    assert shown.exit_code == 0, shown.output
    assert "class Model(nn.Module)" in shown.stdout


def test_a_suite_of_calls_is_written_and_read_again(tmp_path, monkeypatch):
    home = tmp_path / "home"
    formula = "y = maximum(a[*lead, cols], b[cols])"
    CliRunner().invoke(command_line(["new"]), ["new", "larger", "--home", str(home), "--formula", formula])

    def export(*words):
        given = [str(home / "larger" / "definition.md"), "--as", "backendbench", "--out", str(tmp_path / "suite")]
        return CliRunner().invoke(command_line(["suite"]), ["suite", "export", *given, *words])

    assert "is no operator of ATen" in str(export().exception)
    assert "has no float64" in str(export("--aten", "aten.maximum.default", "--dtype", "float64").exception)
    assert not (tmp_path / "suite").exists()
    answer = export("--aten", "aten.maximum.default", "--dtype", "bfloat16")
    assert answer.exit_code == 0, answer.output
    suite = (tmp_path / "suite" / "suite.txt").read_text()
    assert suite.splitlines()[1] == "cnt: 0, ((T([1024, 1024], bf16), T([1024], bf16),), {})"
    (task,) = tasks_at(tmp_path / "suite")
    prepared = task.prepare("again")
    assert prepared.definition.dtypes == ("bfloat16",)
    assert list(prepared.more.files) == ["torch_maximum__default_implementation_v1.py"]
    assert prepared.left_out == ()
    space = {}
    exec(prepared.more.files["torch_maximum__default_implementation_v1.py"], space)
    a, b = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(space["run"](a, b), torch.maximum(a, b))
    with pytest.raises(UsageError, match="has the parameter t"):
        suite_files(from_formula("made", "y = x * t", {"t": 2.0}), "aten.mul.Tensor", "", None)
