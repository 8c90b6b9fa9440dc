"""A record re-runs with one command; what has changed since is said."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from opforge.cli.app import command_line
from opforge.core.definition.implementation import Config
from opforge.core.language.errors import UsageError
from opforge.store import Store
from simulated import make_home

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")

# what one bench recorded serves all
pytestmark = pytest.mark.xdist_group("rerun")


@pytest.fixture(scope="module")
def bench_once(tmp_path_factory):
    """A folder with a home, and a store that holds a record of torch_eager on `some`."""
    folder = tmp_path_factory.mktemp("benched")
    home = make_home(folder)
    words = ("bench", "twice", "--in-process", "--budget", "0.1", "-i", "torch_eager")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setenv("OPFORGE_STORE", str(folder / "records.sqlite"))
        command_line()(["--home", str(home), *words])
    return folder


@pytest.fixture
def opforge(bench_once, tmp_path, monkeypatch, capsys):
    """opforge(words…) runs the command line on that home, with a store of its own, and gives (exit code, what was
    printed).
    """
    shutil.copy(bench_once / "records.sqlite", tmp_path)
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "records.sqlite"))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            command_line()(["--home", str(run.home), *words])
        return ended.value.code, capsys.readouterr().out

    run.home = bench_once / "home"
    return run


def newest(count=1):
    with Store.open() as store:
        return store.query()[-count:]


@pytest.fixture
def benched(opforge):
    """The record."""
    return newest()[0]


def test_a_record_is_measured_again_by_its_id(opforge, benched):
    """By the digits that the report shows, and the new fact is kept beside the old one."""
    code, said = opforge("records", "rerun", benched.id[:12], "--in-process", "--budget", "0.1")
    assert code == 0
    then, now = said.splitlines()[:2]
    assert then.startswith("then") and benched.id[:12] in then
    assert now.startswith("now") and "95 % interval" in now
    again = newest()[0]
    assert again.id != benched.id
    assert (again.operator, again.implementation, again.workload, again.dtype) == (
        benched.operator,
        benched.implementation,
        benched.workload,
        benched.dtype,
    )
    assert "times are not of the same thing" not in said


def test_what_changed_since_is_said_and_a_failure_is_an_exit_code(opforge, benched):
    """The source is another one, and wrong."""
    source = opforge.home / "twice" / "torch_eager.py"
    right = source.read_text()
    source.write_text('"""Wrong now."""\n\n\ndef run(x):\n    return x * 3\n')
    try:
        code, said = opforge("records", "rerun", benched.id, "--in-process", "--budget", "0.1")
    finally:
        source.write_text(right)
    assert code == 1
    assert "another source of the implementation" in said
    assert newest()[0].timing is None


def test_what_cannot_be_had_again_is_said_with_what_can(opforge, benched):
    """A config that is not the default any more, a workload of other sizes, an id that is none."""
    other = dataclasses.replace(benched, id="a" * 32, config=Config((("BLOCK", 7),)))
    resized = dataclasses.replace(benched, id="b" * 32, axes={"rows": 1, "cols": 1})
    with Store.open() as store:
        store.add([other, resized])
    for identity, words in (
        ("a" * 32, "opforge .*compare 'twice:torch_eager"),
        ("b" * 32, "opforge .*show twice"),
        ("ffffffff", "No record"),
    ):
        with pytest.raises(UsageError, match=words):
            command_line()(
                ["--home", str(opforge.home), "records", "rerun", identity, "--in-process"], standalone_mode=False
            )


def test_the_report_of_a_bench_shows_the_history_of_each_kernel(opforge, benched):
    """Three timings are a history; the page draws it, and names the command that measures again."""
    with Store.open() as store:
        store.add([dataclasses.replace(benched, id="a" * 32)])
    opforge("bench", "twice", "--in-process", "--budget", "0.1", "-i", "torch_eager", "--report", "page")
    page = Path("page/report.html").read_text()
    assert "3 timings" in page
    assert 'aria-label="History: 3 timings' in page
    assert f"opforge records rerun {newest()[0].id[:12]}" in page
    code, _ = opforge("report", "twice", "--output", "again")
    assert code == 0
    assert "3 timings" in Path("again/report.html").read_text()
    assert json.loads(Path("again/report.json").read_text())
