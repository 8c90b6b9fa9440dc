"""The verbs, as a script meets them: output, exit codes, errors that end with the next step."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from opforge.cli.app import VERBS, command_line, main
from opforge.store import write_file


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages that a verb writes by default go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Done:
    """What a command line came to."""

    returncode: int
    stdout: str
    stderr: str


def opforge(*words, **environment):
    """A command line in this process: a process of its own costs a second, most of it PyTorch's import."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["opforge", *map(str, words)])
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Done(code, out.getvalue(), err.getvalue())


def opforge_apart(*words, **environment):
    """The same as a shell starts it."""
    return subprocess.run(
        [sys.executable, "-m", "opforge", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "sofmax"), 2, "Did you mean 'softmax'"),
        (("verify",), 2, "Name an operator, or say --all"),
        (("verify", "softmax", "--dtype", "float12"), 2, "No dtype named 'float12'. Did you mean"),
        (("verify", "softmax", "--backend", "cudo"), 2, "Did you mean 'cuda'"),
        (("verify", "softmax", "--device", "npu"), 3, "opforge doctor"),
        (("bench", "softmax", "--workload", "gpt3"), 2, "No workload named 'gpt3'"),
        (("bench", "softmax", "--cold"), 2, "leave --cold away"),
        (("--home", "/nowhere", "list"), 2, "opforge new"),
        (("new", "Bad-Name"), 2, "lower-case"),
        (("new", "softmax"), 2, "already"),
        (("records", "import", "/nowhere"), 2, "opforge records export"),
        (("report", "--run", "none"), 2, "opforge bench --all"),
        (("bench", "softmax", "--dtype", "int8"), 2, "nothing is defined for int8. Choose from: bfloat16"),
        (("verify", "softmax", "-i", "torch_eager", "--backend", "cpp"), 2, "opforge show softmax"),
        (("verify", "softmax", "-i", "cpp"), 2, "No implementation named 'cpp'. Known here: cpp_twopass"),
        (("tune", "softmax", "-i", "cpp_online"), 2, "No implementation named 'cpp_online'. Did you mean"),
        (
            ("bench", "softmax", "-i", "torch_eager", "--report", "/proc/nowhere"),
            2,
            "/proc/nowhere: No such file or directory. Name a place",
        ),
        (("records", "export", "/nowhere/x.jsonl"), 2, "/nowhere/x.jsonl: No such file or directory. Name a place"),
        (("inspect", "softmax", "cpp_twopass", "--target", "sm_90a"), 2, "Leave --target away"),
        (
            ("inspect", "matmul_fp8", "triton_pipelined", "--dtype", "float16"),
            2,
            "No dtype named 'float16'. Known here: float8_e4m3fn, float8_e5m2",
        ),
        (("show", "sofmax"), 2, "opforge --home FOLDER"),
        (("inspect", "softmax", "cpp_twopass", "--dtype", "int8"), 2, "No dtype named 'int8'. Known here: bfloat16"),
        (
            ("sweep", "softmax", "--axis", "cols=2,4", "--dtype", "int8"),
            2,
            "No dtype named 'int8'. Known here: bfloat16",
        ),
        (("tune", "softmax", "--device", "h200", "--target", "a100"), 2, "both describe a device that is meant"),
        (("tune", "softmax", "--device", "ascend"), 2, "opforge inspect OPERATOR IMPLEMENTATION --device ascend"),
        (("build", "softmax", "--device", "mi300x"), 2, "C++ and CUDA kernels are not built for it"),
        (("tune", "softmax", "--dtype", "int8"), 2, "No dtype named 'int8'. Known here: bfloat16"),
        (("report", "--dtype", "flaot32"), 2, "Did you mean 'float32'"),
        (("records", "dance"), 2, "opforge records show"),
        (("frobnicate",), 2, "No such command"),
    ],
)
def test_errors_end_with_the_next_step(words, code, said, tmp_path):
    done = opforge(*words, OPFORGE_STORE=str(tmp_path / "s.sqlite"))
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_shell_gets_what_a_call_in_this_process_gets(tmp_path):
    """The tests here speak to the function that `python -m opforge` calls: exit code and both streams are the same."""
    store = {"OPFORGE_STORE": str(tmp_path / "s.sqlite")}
    for words in (("show", "sofmax"), ("records", "export", tmp_path / "all.jsonl", "--json")):
        done = opforge_apart(*words, **store)
        assert opforge(*words, **store) == Done(done.returncode, done.stdout, done.stderr)


def test_what_is_left_of_a_damaged_store_replaces_no_export(tmp_path):
    """It wrote 0 records over last week's export and exited 0."""
    place, target = tmp_path / "s.sqlite", tmp_path / "all.jsonl"
    store = {"OPFORGE_STORE": str(place)}
    assert opforge("records", "export", target, **store).returncode == 0
    target.write_text("last week's records\n")
    place.write_bytes(b"\xff" * 100 + place.read_bytes()[100:])
    done = opforge("records", "export", target, **store)
    assert (done.returncode, done.stdout) == (1, "")
    assert "damaged" in done.stderr and "rest-of-all.jsonl" in done.stderr and "opforge records import" in done.stderr
    assert target.read_text() == "last week's records\n"
    assert (tmp_path / "rest-of-all.jsonl").read_text() == ""


def test_an_export_that_fails_half_way_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    """A full disk cost both the old records and the new."""
    target = tmp_path / "all.jsonl"
    target.write_text("old\n")

    def full(path, content):
        with path.open("wb") as file:
            file.write(content[:3])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as refused:
        write_file(target, ["new record"])
    assert refused.value.filename == str(target)
    assert [file.name for file in tmp_path.iterdir()] == ["all.jsonl"] and target.read_text() == "old\n"


def test_json_is_json_of_every_action(tmp_path):
    """`baseline` had none, though the README says that each verb has it; `records export --json` wrote a sentence."""
    places = {"OPFORGE_STORE": str(tmp_path / "s.sqlite"), "XDG_DATA_HOME": str(tmp_path)}
    assert json.loads(opforge("baseline", "list", "--json", **places).stdout) == []
    assert json.loads(opforge("records", "export", tmp_path / "all.jsonl", "--json", **places).stdout) == {
        "wrote": 0,
        "file": str(tmp_path / "all.jsonl"),
    }
    for verb in VERBS:
        command = typer.main.get_command(command_line([verb])).commands[verb]
        for action in getattr(command, "commands", {verb: command}).values():
            assert any("--json" in option.opts for option in action.params), (verb, action.name)


def test_building_nothing_is_said(guest):
    """An operator without native kernels, or a target that none is for, ended in silence and exit code 0."""
    done = opforge(
        "--home", guest(eager="def run(x, bias):\n    return x + bias\n"), "build", "guest_add", "--target", "bogus"
    )
    assert done.returncode == 2 and "no C++ or CUDA kernel to build for bogus" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "guest_add", "torch_eager"),
        ("tune", "guest_add"),
        ("compare", "guest_add:torch_eager", "guest_add:torch_twice"),
    ],
)
def test_an_operator_without_workloads_is_told_so(guest, words):
    """inspect ended in a trace, tune in nothing but an exit code."""
    home = guest(
        eager="def run(x, bias):\n    return x + bias\n", twice="def run(x, bias):\n    return x + bias + 0 * x\n"
    )
    file = home / "guest_add" / "op.py"
    file.write_text(re.sub(r"(?m)^    workloads=.*$", "", file.read_text()))
    done = opforge("--home", home, *words)
    assert done.returncode == 2 and "guest_add has no workload" in done.stderr and "Traceback" not in done.stderr, (
        done.stderr
    )


def test_an_interrupted_verb_says_what_is_kept(guest):
    home = guest(eager="def run(x, bias):\n    return x + bias\n")
    (home / "guest_add" / "op.py").write_text("raise KeyboardInterrupt\n")
    done = opforge("--home", home, "show", "guest_add")
    assert done.returncode == 130 and done.stderr == "opforge: interrupted; what was recorded until now is kept\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_no_defect_of_opforge():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "opforge", "show", "softmax"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    assert done.returncode == 3 and "Free some space" in done.stderr and "Traceback" not in done.stderr


def test_list_and_show_speak_json():
    listed = json.loads(opforge("list", "--json").stdout)
    assert {"softmax", "matmul"} <= {row["operator"] for row in listed}
    shown = json.loads(opforge("show", "softmax", "--json").stdout)
    assert shown["name"] == "softmax" and shown["cases"] and shown["workloads"]


def test_doctor_says_what_works():
    done = opforge("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert {"torch", "compile", "triton", "cuda", "tilelang", "cpp", "library"} == {
        line["backend"] for line in found["capabilities"]
    }
    assert all(line["available"] or line["remedy"] for line in found["capabilities"])


def test_a_broken_operator_does_not_hide_the_others(guest):
    home = guest(eager="def run(x, bias):\n    return x + bias\n")
    (home / "guest_add" / "op.py").write_text("1/0")
    done = opforge("--home", home, "list")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout and "softmax" in done.stdout


def test_the_main_job_on_a_guest(guest, tmp_path):
    """bench: verdicts, times, four report files, records that can be exported, imported and reported again."""
    home = guest(
        eager="def run(x, bias):\n    return x + bias\n", twice="def run(x, bias):\n    return x + bias + 0 * x\n"
    )
    store = {"OPFORGE_STORE": str(tmp_path / "s.sqlite")}
    done = opforge_apart(
        "--home",
        home,
        "bench",
        "guest_add",
        "--dtype",
        "float32",
        "--backend",
        "torch",
        "--budget",
        "0.1",
        "--report",
        tmp_path / "r",
        "--json",
        **store,
    )
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert {record["implementation"] for record in records} == {"torch_eager", "torch_twice"}
    assert all(record["verdict"]["type"] == "Pass" and record["timing"]["samples_s"] for record in records)
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "report.html",
        "report.md",
        "report.json",
        "report.csv",
    }
    assert opforge("records", "export", tmp_path / "all.jsonl", **store).returncode == 0
    other = {"OPFORGE_STORE": str(tmp_path / "other.sqlite")}
    assert "imported 2 records" in opforge("records", "import", tmp_path / "all.jsonl", **other).stdout
    table = opforge("report", "--from", tmp_path / "all.jsonl", "--table", **other)
    assert table.returncode == 0 and "guest_add" in table.stdout and "†" not in table.stdout
    (home / "guest_add" / "torch_eager.py").write_text("def run(x, bias):\n    return bias + x\n")
    marked = opforge("--home", home, "report", "--from", tmp_path / "all.jsonl", "--table", "--each", **other).stdout
    assert [line.split("|")[3].strip(" *") for line in marked.splitlines() if " † |" in line] == ["torch_eager"]


def test_a_planted_bug_gets_a_mismatch_and_no_time(guest, tmp_path):
    """The seed's broadcast writes only the bias; its verdict names index, expected, actual and tolerance."""
    home = guest(
        eager="def run(x, bias):\n    return x + bias\n",
        seed="def run(x, bias):\n    return bias.expand_as(x).clone()\n",
    )
    words = (
        "--home",
        home,
        "bench",
        "guest_add",
        "--dtype",
        "float32",
        "--backend",
        "torch",
        "--budget",
        "0.1",
        "--report",
        tmp_path / "r",
        "--json",
    )
    done = opforge(*words, OPFORGE_STORE=str(tmp_path / "s.sqlite"))
    assert done.returncode == 1
    (wrong,) = [record for record in json.loads(done.stdout) if record["implementation"] == "torch_seed"]
    verdict = wrong["verdict"]
    assert verdict["type"] == "Mismatch" and wrong["timing"] is None
    assert len(verdict["index"]) == 2 and abs(verdict["expected"] - verdict["actual"]) > verdict["tolerance"] > 0


def test_new_writes_where_the_command_says(tmp_path):
    """`opforge --home my_ops new squares` wrote to ./operators; the page of the new operator named a command that there
    is not.
    """
    home = tmp_path / "my ops"
    home.mkdir()
    done = opforge("--home", home, "new", "squares")
    assert done.returncode == 0 and (home / "squares" / "op.py").is_file() and not (tmp_path / "operators").exists()
    assert f"next: opforge --home '{home}' bench squares" in done.stdout
    assert "`opforge --home FOLDER bench squares`" in (home / "squares" / "README.md").read_text()


@pytest.mark.parametrize(
    "effort", [pytest.param(("--quick",), marks=pytest.mark.campaign), pytest.param((), marks=pytest.mark.slow)]
)
def test_new_runs_as_it_stands(tmp_path, effort):
    assert opforge("new", "squares", "--home", tmp_path / "mine").returncode == 0
    done = opforge(
        "--home",
        tmp_path / "mine",
        "verify",
        "squares",
        "--dtype",
        "float32",
        "--json",
        *effort,
        OPFORGE_STORE=str(tmp_path / "s.sqlite"),
    )
    verdicts = {record["implementation"]: record["verdict"]["type"] for record in json.loads(done.stdout)}
    assert done.returncode == 0
    assert set(verdicts) == {"cuda_flat", "triton_flat", "tilelang_flat", "cpp_flat", "torch_eager", "torch_compile"}
    assert set(verdicts.values()) == {"Pass"}, verdicts
