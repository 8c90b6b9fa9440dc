"""Spaces measured whole: what is written can be searched, a lost process costs its point and no other."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from opforge.core.definition.implementation import Config
from opforge.core.language.errors import UsageError
from opforge.tuning.exchange import traces_in
from opforge.tuning.replay import measured_spaces
from opforge.tuning.strategies import Failure, Measured

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

import space_definitions  # noqa: E402
import space_measuring  # noqa: E402
import spaces  # noqa: E402

SMALL = space_definitions.Wanted(
    kernel="product",
    shape="64",
    operator="matmul",
    axes={"m": 64, "n": 64, "k": 64},
    dtype="float32",
    device="cpu",
    backend="cpp",
    variants=(
        space_definitions.Variant(
            implementation="cpp_blocked", space={"DEPTH": (128,), "BLOCK": (6, 12), "STRIP": (512,), "ISA": (0,)}
        ),
    ),
)


def written(folder: Path, lines: dict) -> Path:
    points = space_definitions.points_of(SMALL, space_measuring.detect("cpu"))
    data = spaces.t4(SMALL, points, lines, "some-device")
    file = folder / "product@some-device_64.json.gz"
    file.write_bytes(gzip.compress(json.dumps(data).encode()))
    return file


def test_what_is_written_is_a_space_to_search_and_a_trace_to_begin_with(tmp_path):
    """A failing point stays in the space: a search that never meets one is judged too well."""
    file = written(
        tmp_path,
        {
            0: {"point": 0, "samples_s": [2e-3, 1e-3, 3e-3], "registers": 40, "shared_bytes": 0},
            1: {"point": 1, "failed": "wrong"},
        },
    )
    (space,) = measured_spaces(tmp_path)
    assert space.name == "product@some-device_64" and space.best_s == pytest.approx(2e-3)
    names = {"DEPTH": 128, "STRIP": 512, "ISA": 0}
    assert space.outcome(Config(tuple({**names, "BLOCK": 6}.items()))) == Measured(seconds=2e-3)
    assert isinstance(space.outcome(Config(tuple({**names, "BLOCK": 12}.items()))), Failure)
    (trace,) = traces_in(file, axes=SMALL.axes, dtype="float32")
    assert [type(outcome) for _, outcome in trace.outcomes] == [Measured, Failure]
    said = json.loads(gzip.decompress(file.read_bytes()))
    assert {"name": "registers", "value": 40, "unit": ""} in said["results"][0]["measurements"]


def test_a_space_that_is_not_whole_is_refused(tmp_path):
    """Its best point is no optimum: a search would be judged by what happened to be measured."""
    written(tmp_path, {0: {"point": 0, "samples_s": [1e-3]}})
    with pytest.raises(UsageError, match="not measured whole"):
        measured_spaces(tmp_path)


def test_a_point_that_takes_its_process_along_has_failed_and_the_others_are_measured(tmp_path, monkeypatch):
    """The journal says which point was begun; half a line at its end is that of a killed process."""
    journal = tmp_path / f"{SMALL.name}.jsonl"
    journal.write_text('{"point": 0, "samples_s": [1e-3]}\n{"begun": 1}\n{"poi', encoding="utf-8")
    progress = space_measuring.Progress(journal)
    assert progress.begun == 1 and set(progress.known) == {0}

    child = "import sys; print('at', sys.argv[1], 1, flush=True); import os; os.kill(os.getpid(), 9)"
    run = subprocess.Popen

    def dying(words, **options):
        return run([sys.executable, "-c", child, SMALL.name], **options)

    monkeypatch.setattr(spaces.subprocess, "Popen", dying)
    monkeypatch.setattr(spaces, "SPACES", (SMALL,))
    spaces.supervise(tmp_path, [SMALL.name], "cpu", spaces.time.time() + 30)
    known = space_measuring.Progress(journal).known
    assert known[1]["failed"] == "launch" and "-9" in known[1]["reason"]


@pytest.mark.campaign
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels are compiled with g++ here")
def test_every_point_is_measured_once_and_checked(tmp_path, monkeypatch, capsys):
    """A kernel that computes something else gets no time, however fast it is."""
    monkeypatch.setattr(space_measuring, "SPACES", (SMALL,))
    until = space_measuring.time.time() + 600
    space_measuring.measure(tmp_path, [SMALL.name], "cpu", until)
    known = space_measuring.Progress(tmp_path / f"{SMALL.name}.jsonl").known
    assert sorted(known) == [0, 1] and all(line["samples_s"] for line in known.values())
    before = (tmp_path / f"{SMALL.name}.jsonl").read_text()
    space_measuring.measure(tmp_path, [SMALL.name], "cpu", until)
    assert (tmp_path / f"{SMALL.name}.jsonl").read_text() == before

    import direct

    monkeypatch.setattr(direct, "right", lambda *_: False)
    (tmp_path / f"{SMALL.name}.jsonl").unlink()
    space_measuring.measure(tmp_path, [SMALL.name], "cpu", until)
    assert {line["failed"] for line in space_measuring.Progress(tmp_path / f"{SMALL.name}.jsonl").known.values()} == {
        "wrong"
    }
