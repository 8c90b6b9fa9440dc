"""Tasks of other benchmarks become operators: their PyTorch is traced apart, their workloads and solutions come along,
and what cannot is told with its reason.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.evidence.verdict import Pass
from opforge.core.language.errors import UsageError
from opforge.forge import files_of
from opforge.forge.program.evaluate import evaluate
from opforge.forge.program.families import layout_of
from opforge.forge.read import apart as apart_module
from opforge.forge.read.apart import apart
from opforge.forge.suites.formats.call_lines import calls_in
from opforge.forge.suites.formats.documents import At
from opforge.forge.suites.formats.files import files_of_task, task_sets
from opforge.forge.suites.formats.nouns import FLASHINFER, Definition, Solution, TaskSet, Trace
from opforge.forge.suites.kernelbench import read_task
from opforge.forge.suites.solutions import brought_in
from opforge.forge.suites.suite import judged
from opforge.forge.suites.tasks import one_task, tasks_at
from opforge.forge.suites.traced_tasks import name_for, read_operator, read_task_set

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
BODY = "    return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps) * w\n"


def task(reference, inputs=None, outputs=None, axes=None, works=({"b": 3},), numbers=None, dtype="float32"):
    numbers = {"eps": 1e-5} if numbers is None else numbers
    axes = axes or {"b": {"type": "var"}, "h": {"type": "const", "value": 64}}
    inputs = inputs or {"x": ["b", "h"], "w": ["h"], "eps": None}
    document = {
        "name": "rms",
        "op_type": "norm",
        "axes": axes,
        "inputs": {key: {"shape": shape, "dtype": dtype} for key, shape in inputs.items()},
        "outputs": {key: {"shape": shape, "dtype": dtype} for key, shape in (outputs or {"y": ["b", "h"]}).items()},
        "reference": "import torch\n\ndef run(x, w, eps):\n" + reference if reference.startswith("    ") else reference,
    }
    lines = [
        {
            "definition": "rms",
            "workload": {
                "uuid": f"u{number}",
                "axes": {key: size for key, size in work.items() if key != "eps"},
                "inputs": {
                    key: {"type": "scalar", "value": work.get(key, numbers.get(key))}
                    if shape is None and key in numbers
                    else {"type": "random"}
                    for key, shape in inputs.items()
                },
            },
        }
        for number, work in enumerate(works)
    ]
    return TaskSet(
        form=FLASHINFER,
        definition=Definition.read(document, At("d.json")),
        workloads=tuple(Trace.read(line, At("w.jsonl")) for line in lines),
        where="d.json",
    )


def solution(content, language="python", entry="main.py::run", *, in_place=True, path="main.py", **spec):
    return Solution.read(
        {
            "name": "Mine v1",
            "definition": "rms",
            "author": "a",
            "spec": {"language": language, "target_hardware": ["cpu"], "entry_point": entry}
            | {"destination_passing_style": in_place}
            | spec,
            "sources": [{"path": path, "content": content}],
        },
        At("s.json"),
    )


def test_a_definition_keeps_its_names_sizes_numbers_and_dtype():
    asked = task(BODY, works=({"b": 3}, {"b": 4096}, {"b": 3}, {"b": 5, "eps": 0.5}, {"b": 0}), dtype="bfloat16")
    found = read_task_set(asked, "mine")
    definition = found.definition
    assert [(item.name, item.axes) for item in definition.inputs] == [("x", ("b", "h")), ("w", ("h",))]
    assert (dict(definition.outputs), definition.dtypes) == ({"y": ("b", "h")}, ("bfloat16",))
    assert [dict(one.axes) for one in definition.workloads] == [{"b": 3, "h": 64}, {"b": 4096, "h": 64}]
    assert "workload u1" in definition.workloads[1].source
    assert (dict(found.inputs), found.outputs, dict(found.fixed)) == (
        {"x": "x", "w": "w", "eps": 1e-5},
        ("y",),
        {"h": 64},
    )
    assert ["u3" in found.left_out[0], "u4" in found.left_out[1]] == [True, True]
    x, w = torch.randn(2, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    got = evaluate(definition.program(), {"x": x, "w": w}, {})["y"]
    torch.testing.assert_close(got, x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w)
    assert "special" not in files_of(definition)["op.py"]


def test_a_number_that_follows_from_a_size_is_found():
    """Traced on one set of small sizes the formula would hold that size for good."""
    by_hand = "    return x * w / x.shape[-1] + eps\n"
    # the axis is the same for all workloads: the number is right, and stays
    found = read_task_set(task(by_hand), "mine")
    assert "/ 64.0" in found.definition.formula.text
    literal = read_task_set(task("    return x * w / 64 + eps\n"), "mine")
    assert "/ 64.0" in literal.definition.formula.text
    axes = {"b": {"type": "var"}, "h": {"type": "var"}}
    with pytest.raises(UsageError, match="changes with a size that workloads say"):
        read_task_set(task(by_hand, axes=axes, works=({"b": 3, "h": 64},)), "mine")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int32"}, "tensors of int32, and formulas take"),
        ({"works": ()}, "no workload says the number eps"),
        ({"inputs": {"x": ["b", "h"], "w": ["h"]}}, "run takes 3 arguments and the definition has 2"),
        ({"reference": "    return torch.sort(x).values\n"}, "aten.sort"),
        ({"reference": "    return x * eps\n"}, "does not read w"),
        ({"reference": "import nothing_of_this_name\ndef run(x, w, eps): pass"}, "cannot be run: ModuleNotFoundError"),
        ({"reference": "    raise RuntimeError('mine')\n"}, "cannot be traced"),
        ({"reference": "    import os; os._exit(3)\n"}, "d.json ended its process .exit code 3"),
        ({"reference": "    import os; os.kill(os.getpid(), 11)\n"}, "ended its process .signal 11"),
    ],
)
def test_definitions_that_are_no_operator_here_are_told(changes, message):
    with pytest.raises(UsageError, match=message):
        read_task_set(task(**{"reference": BODY} | changes), "mine")


def test_tensors_of_several_dtypes_are_told():
    asked = task(BODY)
    other = replace(asked.definition.outputs["y"], dtype="float16")
    with pytest.raises(UsageError, match="float16 and float32, not one"):
        read_task_set(replace(asked, definition=replace(asked.definition, outputs={"y": other})), "mine")


def test_a_task_does_nothing_to_this_process_or_to_the_next_task(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OPFORGE_MODEL_KEY", "sk-very-secret")
    bad = """
import os, torch
assert "OPFORGE_MODEL_KEY" not in os.environ
print("a print is no answer")
torch.relu = torch.tanh
os.environ["LEFT"] = "behind"
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x)
def get_inputs():
    return [torch.rand(4, 8)]
"""
    (tmp_path / "1_bad.py").write_text(bad)
    (tmp_path / "2_good.py").write_text(
        bad.split("assert")[0] + "class" + bad.split("class")[1].replace("tanh", "relu")
    )
    before = torch.relu
    assert "tanh" in read_task(tmp_path / "1_bad.py", "bad").formula.text
    assert torch.relu is before
    assert "LEFT" not in os.environ
    assert "relu" in read_task(tmp_path / "2_good.py", "good").formula.text
    assert "a print is no answer" not in capfd.readouterr().out


def test_a_task_that_never_ends_is_ended_and_the_next_one_is_answered(tmp_path):
    (tmp_path / "1_slow.py").write_text(
        "import time\nwhile True: time.sleep(1)\nclass Model: pass\ndef get_inputs(): pass"
    )
    from opforge.forge.suites.kernelbench import task_fields

    apart(name_again, "warm")
    server = apart_module._server
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched, pytest.raises(UsageError, match=r"1_slow.py gave no answer .TimeoutError"):
        # what is added to the limit for the way
        patched.setattr(apart_module, "ON_THE_WAY_S", 0.1)
        apart(task_fields, str(tmp_path / "1_slow.py"), "slow", limit_s=0.5)
    assert server.poll() is not None
    assert apart(name_again, "still") == "still"


name_again = name_for


def said_by(own, definition):
    """Whether a task's own reference computes what its definition says; it may round to bfloat16."""
    space = {}
    exec(own, space)
    sizes = {axis: 5 + number for number, axis in enumerate(sorted({a for i in definition.inputs for a in i.axes}))}
    for expression in space["SUPPORTS"].values():
        if "==" in expression:
            axis, _, size = expression.partition(" == ")
            sizes[axis] = int(size)
    given = {item.name: torch.randn([sizes[axis] for axis in item.axes]) for item in definition.inputs}
    results = space["run"](*given.values())
    results = results if isinstance(results, tuple) else (results,)
    expected = evaluate(definition.program(), {name: one.double() for name, one in given.items()}, {}).values()
    pairs = list(zip(results, expected, strict=True))
    return all(torch.allclose(a.double(), b, rtol=2e-2, atol=2e-2) for a, b in pairs)


def test_the_tasks_of_the_sources_are_read():
    """Ten in each format; every one is an operator, what was left out has its reason, solutions that fit came along."""
    families, brought, left_out = [], [], []
    for place in ("flashinfer_trace", "sol_execbench", "backendbench"):
        found = tasks_at(EXAMPLES / place)
        assert len(found) == 10
        for one in found:
            prepared = one.prepare(one.name)
            files = files_of(prepared.definition, more=prepared.more)
            assert all(f'"{name.split(".")[0]}"' in files["op.py"] for name in prepared.more.files)
            families.append(layout_of(prepared.definition.program()).family)
            brought += (name for name in prepared.more.files if name != "torch_task.py")
            left_out += prepared.left_out
            own = prepared.more.files.get("torch_task.py")
            assert (own is None) == (place == "backendbench"), one.label
            if own is not None:
                assert said_by(own, prepared.definition), one.label
    assert {family: families.count(family) for family in families} == {"elementwise": 14, "rows": 11, "product": 5}
    assert sorted(brought) == [
        "torch_relu__default_implementation_v1.py",
        "torch_silu_mul_out.py",
        "torch_softmax_by_hand.py",
        "torch_swish_eager.py",
        "triton_rmsnorm_rows.py",
    ]
    for words in ("called through tvm-ffi", "called through torch", "strides of its own", "tensors of int64"):
        assert any(words in reason for reason in left_out), words


def test_the_examples_are_written_as_they_were_read():
    for place in ("flashinfer_trace", "sol_execbench"):
        kept = {
            str(path.relative_to(EXAMPLES / place)): path.read_text()
            for path in (EXAMPLES / place).rglob("*")
            if path.is_file()
        }
        written = {}
        for one in task_sets(EXAMPLES / place):
            written |= files_of_task(one)
        assert sorted(written) == sorted(kept)
        for name, text in written.items():
            if name.endswith(".jsonl"):
                assert [json.loads(line) for line in text.splitlines()] == [
                    json.loads(line) for line in kept[name].splitlines()
                ]
            else:
                assert text == kept[name]
    suite = (EXAMPLES / "backendbench" / "suite.txt").read_text()
    assert calls_in(suite, "s").written() == suite


def test_calls_of_one_structure_are_one_operator():
    text = (
        "Operator: aten.mul.Tensor\n"
        "cnt: 5, ((T([64, 32], f16), T([32], f16)), {})\n"
        "cnt: 2, ((T([7, 9], f32), T([9], f32)), {})\n"
        "cnt: 6, ((T([7], f32), 2.0), {})\n"
        "cnt: 1, ((T([4, 0], f32), T([0], f32)), {})\n"
    )
    found = read_operator(calls_in(text, "s").operators[0], "mine", "s.txt")
    assert [dict(one.axes) for one in found.definition.workloads] == [{"d0": 64, "d1": 32}, {"d0": 7, "d1": 9}]
    assert found.definition.dtypes == ("float16", "float32")
    assert found.definition.workloads[0].source == "BackendBench, aten.mul.Tensor, 5 calls in models"
    assert len(found.left_out) == 2
    for name, arguments, message in (
        ("aten.nothing.Tensor", "((T([2], f32),), {})", "no operator aten.nothing.Tensor"),
        ("aten.sort.default", "((T([20], f32),), {})", "aten.sort"),
        ("aten.relu.default", "((T([2], i64),), {})", "tensors of int64"),
        ("aten.relu.default", "((), {})", "no tensor"),
    ):
        calls = calls_in(f"Operator: {name}\ncnt: 1, {arguments}", "s").operators[0]
        with pytest.raises(UsageError, match=message):
            read_operator(calls, "mine", "s.txt")


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("language", ["python", "triton"])
def test_a_solution_is_called_as_its_benchmark_calls_it(language, in_place):
    content = (
        "def mine(x, w, eps, y):\n    y.copy_(x * w + eps)\n"
        if in_place
        else "def mine(x, w, eps):\n    return x * w + eps\n"
    )
    found = read_task_set(task("    return x * w + eps\n"), "op")
    name, text = brought_in(solution(content, language, "main.py::mine", in_place=in_place), found)
    assert name == ("torch" if language == "python" else "triton") + "_mine_v1.py"
    space = {}
    exec(text, space)
    assert space["SUPPORTS"] == {"made for h 64": "h == 64", "not empty": "b > 0"}
    x, w, y = torch.randn(2, 64), torch.randn(64), torch.empty(2, 64)
    got = space["run"](x, w) if language == "python" else (space["launch"](x, w, y), y)[1]
    assert torch.equal(got, x * w + 1e-5)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (solution("x", "cuda", "k.cu::run", path="k.cu"), "called through tvm-ffi"),
        (solution("x", "cpp", "k.cpp::run", path="k.cpp", binding="torch"), "called through torch"),
        (solution("x", "tilelang"), "is in tilelang"),
        (solution("def walk(): pass"), "has no run at the top level"),
        (solution("SPACE = 3\ndef run(): pass"), "has a SPACE of its own"),
        (solution("def launch(): pass\ndef run(): launch()", "triton"), "has a launch of its own"),
        (solution("def run(:"), "must be Python"),
    ],
)
def test_a_solution_that_fits_no_backend_is_told(made, message):
    found = read_task_set(task("    return x * w + eps\n"), "op")
    with pytest.raises(UsageError, match=message):
        brought_in(made, found)


def test_a_kernel_in_opforges_own_terms_is_taken_as_it_is():
    text = "void run() {}\nOPFORGE_EXPORT(run, run)\n"
    found = read_task_set(task("    return x * w + eps\n"), "op")
    assert brought_in(solution(text, "cuda", "k.cu::run", path="k.cu"), found) == ("cuda_mine_v1.cu", text)


def test_solutions_are_told_beside_what_was_generated():
    def record(name, backend, median_s, passed=True):
        verdict = Pass(checked=(), not_taken=(), isolation="") if passed else type("Mismatch", (), {})()
        timing = SimpleNamespace(median_s=median_s)
        return SimpleNamespace(implementation=name, backend=backend, timing=timing, verdict=verdict, roof_s=None)

    records = [
        record("torch_eager", "torch", 4.0),
        record("cpp_rows", "cpp", 2.0),
        # faster than the baseline and no baseline itself
        record("torch_mine", "torch", 1.0),
        record("triton_theirs", "triton", 1.0, passed=False),
    ]
    found = judged("a", records, ("torch_mine", "triton_theirs"))
    assert (found.outcome, found.speed_up, found.baseline) == ("correct", 2.0, "torch_eager")
    assert dict(found.solutions) == {"torch_mine": "4.00", "triton_theirs": "Mismatch"}


def test_one_task_of_several_is_named():
    suite = EXAMPLES / "backendbench" / "suite.txt"
    assert one_task(Path(f"{suite}:aten.mm.default")).name == "aten_mm_default"
    with pytest.raises(UsageError, match=r"holds 10 tasks\. Name one"):
        one_task(suite)
    with pytest.raises(UsageError, match=r"Did you mean 'aten\.mm\.default'"):
        one_task(Path(f"{suite}:aten.mm.defaul"))
    with pytest.raises(UsageError, match="There is no file"):
        one_task(suite.parent / "nothing.json")
    with pytest.raises(UsageError, match="has no tasks"):
        tasks_at(suite.parent / "generated_kernels" / "relu__default" / "..")


def test_the_command_makes_an_operator_of_a_task(tmp_path):
    def ask(*words):
        return CliRunner().invoke(command_line(["new"]), ["new", "made", "--home", str(tmp_path), *words])

    file = str(EXAMPLES / "flashinfer_trace" / "definitions" / "gemm" / "gemm_n256_k512.json")
    answer = ask("--from", file)
    assert answer.exit_code == 0, answer.output
    assert "left out: the solution gemm_declared" in answer.stdout
    assert 'shape="N K"' in (tmp_path / "made" / "op.py").read_text()
    assert isinstance(ask("--from", file, "--formula", "y = x").exception, UsageError)
    shown = ask("--from", f"{EXAMPLES / 'backendbench' / 'suite.txt'}:aten.relu.default", "--show-ir")
    assert "relu" in shown.stdout
