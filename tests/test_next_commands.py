"""What a command names as the next step runs as it stands; options are found where people type them."""

import contextlib
import os
import re
import sqlite3
import sys
from dataclasses import replace

import pytest

from opforge.core.evidence.record import FOLDER
from opforge.core.evidence.timing import Round
from opforge.core.language.errors import unknown
from opforge.machine.environments import environment
from opforge.registry.discovery import PACKAGE_HOME
from opforge.report import confessions, kept_rows
from opforge.report.disturbance import disturbance
from opforge.report.error_words import error_words, half_step, of_arithmetic
from opforge.report.record_text import clean
from opforge.report.summary import overview
from opforge.report.view import groups
from simulated import make_home, record
from test_cli import opforge


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path)


@pytest.mark.parametrize("before", [True, False])
def test_a_home_is_named_before_the_verb_or_behind_it(home, before):
    """`opforge verify NAME --home my_ops` was "No such option"."""
    words = ("--home", home, "show", "twice") if before else ("show", "twice", "--home", home)
    done = opforge(*words)
    assert done.returncode == 0 and "twice" in done.stdout, done.stderr


def test_a_failure_of_a_guest_is_replayed_by_the_command_it_prints(home, tmp_path):
    """The record knows its folder; the store that was named is named again."""
    store = tmp_path / "kept.sqlite"
    (home / "twice" / "torch_eager.py").write_text("def run(x):\n    return x * 2 + 0.5\n")
    words = ("twice", "-i", "torch_eager", "--dtype", "float32", "--quick", "--in-process")
    failed = opforge("verify", *words, "--home", home, "--store", store)
    assert failed.returncode == 1, failed.stderr
    command = re.search(r"the same values again with: opforge (.*)", failed.stdout).group(1)
    assert command.startswith(f"--store {store} verify --replay ")
    again = opforge(*command.split(), "--in-process")
    assert again.returncode == 0 and "the same, with the recorded source" in again.stdout, again.stderr
    listed = opforge("records", "--store", store).stdout
    assert re.search(r"^[0-9a-f]{12} +\d{4}-\d\d-\d\d \d\d:\d\d ", listed, re.MULTILINE)
    assert str(home / "twice") in listed


def test_an_error_names_the_folder_in_its_commands(home):
    """`opforge list` without the folder did not list what had been misspelt."""
    done = opforge("show", "twce", "--home", home)
    assert done.returncode == 2 and f"See all with: opforge --home {home} list" in done.stderr


def test_a_record_names_the_folder_of_a_guest_alone(home):
    """The package lies elsewhere on every machine, and its operators are found by name."""
    assert environment("cpu", home / "twice").facts[FOLDER] == str(home / "twice")
    assert FOLDER not in environment("cpu", PACKAGE_HOME / "rows" / "softmax").facts
    assert environment("cpu", home / "twice").fingerprint == environment("cpu").fingerprint


@pytest.mark.parametrize(
    ("given", "meant"),
    [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("fp32", "float32"), ("torch.double", "float64")],
)
def test_another_name_of_a_dtype_is_told_ours(given, meant):
    """fp16 is nearer to int16 than to float16, letter by letter."""
    done = opforge("verify", "softmax", "--dtype", given)
    assert done.returncode == 2 and f"Did you mean '{meant}'?" in done.stderr


def test_an_unknown_name_among_many_is_told_the_three_nearest():
    """46 operators filled the screen."""
    message = str(unknown("operator", "softmx", ["softmax", "log_softmax", *(f"other{place}" for place in range(44))]))
    assert message.startswith("No operator named 'softmx'. Did you mean 'softmax'? Also near: log_softmax, other")
    assert message.count("other") == 1
    assert "The nearest: " in str(unknown("operator", "xyzzy", [f"other{place}" for place in range(44)]))


def test_ten_megabytes_of_text_are_cut_in_a_table(record_of_ten_megabytes):
    """One such cell made the terminal scroll for minutes."""
    (line,) = kept_rows([record_of_ten_megabytes]).rows
    assert max(map(len, line.cells)) <= 100
    assert len(clean("=" * 10**7)) == 4000


@pytest.fixture
def record_of_ten_megabytes():
    large = record()
    object.__setattr__(large, "workload", "w" * 10**7)
    return large


@pytest.mark.parametrize(
    ("typed", "place", "offered"),
    [("opforge ver", 1, ["verify"]), ("opforge tune log_softm", 2, ["log_softmax", "log_softmax_backward"])],
)
def test_a_shell_completes_verbs_and_operators(typed, place, offered, monkeypatch):
    """As bash asks for it (docs/verbs/README.md says how it is installed)."""
    asked = {"_OPFORGE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(place)}
    monkeypatch.setattr(sys, "argv", ["opforge"])
    assert opforge(**asked).stdout.split() == offered


def test_what_was_not_built_is_said(home):
    """`build --target sm_90a` of an operator with C++ built nothing of it, and did not say so."""
    (home / "twice" / "cpp_plain.cpp").write_text("// y = 2x\n")
    definition = home / "twice" / "op.py"
    definition.write_text(definition.read_text().replace("'torch_slow'", "'torch_slow', 'cpp_plain'"))
    done = opforge("build", "twice", "--home", home, "--target", "sm_90a")
    assert "not built: twice/cpp_plain: C++ is for this machine; build it with: --target host" in done.stderr
    assert "twice/torch_eager" in done.stderr and "compiled at their first call" in done.stderr


@pytest.mark.parametrize("name", ["ascend910b", "ascend-910b"])
def test_inspect_takes_the_names_that_the_list_of_devices_shows(name):
    """It ended with TileLang's "CUDA target gets an invalid CUDA arch" after a minute of imports."""
    done = opforge("inspect", "softmax", "tilelang_onepass", "--target", name)
    assert done.returncode == 2 and "ascend-910b is a device of the kind npu" in done.stderr
    assert "--backend ascendc" in done.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("libx.so: failed to map segment from shared object"), OSError(12, "no memory")]
)
def test_want_of_memory_is_the_environments(error, monkeypatch):
    """`ulimit -v` too small ended with a trace and exit code 1, which says that a verdict failed."""

    def short(*_):
        raise error

    monkeypatch.setattr("opforge.cli.shared.load", short)
    done = opforge("show", "softmax")
    assert done.returncode == 3 and "ulimit -v" in done.stderr and "Traceback" not in done.stderr


def test_a_pipe_is_no_store(tmp_path):
    """Opening one waited for a writer for ever."""
    os.mkfifo(tmp_path / "pipe")
    done = opforge("records", "--store", tmp_path / "pipe")
    assert done.returncode == 2 and "is not a regular file" in done.stderr


def test_one_damaged_record_is_named_and_the_rest_is_shown(tmp_path):
    """It stopped `records` and `records export`, and was not named."""
    from opforge.store import Store

    file, kept = tmp_path / "records.sqlite", [record(), record()]
    with Store.open(str(file)) as store:
        store.add(kept)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("update records set body = replace(body, 'some', 'sone') where id = ?", (kept[0].id,))
        database.commit()
    shown = opforge("records", "--store", file)
    assert shown.returncode == 0 and kept[1].id[:12] in shown.stdout and kept[0].id[:12] not in shown.stdout
    assert f"record {kept[0].id[:12]} was damaged on disk and is left out" in shown.stderr
    exported = opforge("records", "export", tmp_path / "all.jsonl", "--store", file)
    assert exported.returncode == 1 and not (tmp_path / "all.jsonl").exists()
    assert kept[1].id in (tmp_path / "rest-of-all.jsonl").read_text()


def disturbed(share):
    """A record with that share of its rounds disturbed."""
    whole = record()
    turns = tuple(
        Round(samples=3, wall_s=1.0, own_s=0.5, waited_s=0.5 if place < share * 10 else 0.0, voluntary=0, involuntary=0)
        for place in range(10)
    )
    object.__setattr__(whole.timing, "rounds", turns)
    return whole


def test_a_disturbed_run_is_told_in_one_sentence():
    """30 lines said the same of 30 times."""
    told = confessions([disturbed(1.0) for _ in range(6)])
    assert [line for line in told if "had the processors" in line] == told
    assert told[0].startswith("others had the processors in 100% of the turns: no ratio here is certain; repeat with")
    assert told[0].endswith("opforge bench softmax")
    assert disturbance([disturbed(0.0), disturbed(0.0), disturbed(1.0)]) == disturbance([disturbed(1.0)]) == ""


def test_the_arithmetics_share_stands_beside_the_rounding_of_the_store():
    """99 % of the bound in float16 is the rounding of the output, whatever the kernel computed."""
    step = 2.0**-11  # half a step of float16 at 1.0
    whole = replace(
        record().verdict.checked[0].metrics[0],
        worst_expected=1.0, worst_actual=1.0 + 0.99 * step, worst_bound=1.25 * step, worst_ratio=0.792,
    )  # fmt: skip
    assert half_step(1.0, "float16") == half_step(-1.99, "float16") == step and half_step(2.0, "bfloat16") == 2.0**-7
    assert of_arithmetic(whole, "float16") == 0.0
    assert of_arithmetic(replace(whole, worst_actual=1.0 + 1.125 * step), "float16") == pytest.approx(0.5)
    # in float32 the arithmetic is most of the bound: nothing is told apart
    assert of_arithmetic(whole, "float32") is None
    passed = record().verdict
    object.__setattr__(passed.checked[0], "metrics", (replace(whole, worst_actual=1.0 + 1.125 * step),))
    assert error_words(passed, "float16") == "79% (50% arithmetic)"
    assert error_words(passed, "float32") == "79%"


def test_a_time_without_a_ratio_stands_in_the_column_of_times():
    """It stood to the left of its column's header, where the ratios are."""
    slow, fast = record(2e-3), record(implementation="cpp_x")
    for item in (slow, fast):
        object.__setattr__(item.timing, "suspect", "a test")
        object.__setattr__(item.timing, "terms", "call")
    (group,) = groups([slow, fast])
    cells = overview([slow, fast], [("at", group)])["rows"][0]["cells"]
    assert {(cell["main"], cell["small"]) for cell in cells} == {("", "2.00 ms"), ("", "1.00 ms")}
    assert all("alone" in cell["shade"] for cell in cells)
