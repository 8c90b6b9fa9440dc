"""How long compilers took, version by version."""

import dataclasses
import json
import sys

import pytest

from opforge.core.evidence.record import from_json, to_json
from opforge.gate.compile_history import compile_history
from opforge.store import Store
from opforge.trial import compile_seconds
from simulated import record
from test_cli import opforge
from test_prints import CPP, RIGHT, record_of


def compiled(seconds, *, day, source, backend="triton", dtype="float32"):
    made = record(1e-3, day=day)
    return dataclasses.replace(made, compile_s=seconds, source_sha256=source * 64, backend=backend, dtype=dtype)


def test_versions_are_told_apart_and_a_cache_is_no_speed_up():
    """The second look at a source finds the compiler's cache: it says nothing of the compiler."""
    records = [
        compiled(0.1, day=1, source="a"),
        compiled(2.0, day=0, source="a"),
        compiled(3.0, day=2, source="b"),
        compiled(None, day=3, source="c"),
        compiled(0.0, day=3, source="d"),
        compiled(9.0, day=4, source="e", dtype="float16"),
    ]
    half, single = compile_history(records)
    assert half.dtype == "float16" and [item.seconds for item in half.versions] == [9.0]
    assert [(item.source_sha256[0], item.seconds, item.records) for item in single.versions] == [
        ("a", 2.0, 2),
        ("b", 3.0, 1),
    ]
    assert single.words.splitlines()[1].startswith("  2026-01-01  source aaaaaaaa [")
    assert "2.00 s" in single.words.splitlines()[1] and "(1.50x of the one before)" in single.words.splitlines()[2]
    # one library serves all dtypes
    native = [dataclasses.replace(item, backend="cpp") for item in records]
    assert [series.dtype for series in compile_history(native)] == [""]


def test_the_verb_shows_them_and_says_where_there_are_none(tmp_path):
    place = {"OPFORGE_STORE": str(tmp_path / "records.sqlite")}
    done = opforge("history", "softmax", "--compile", **place)
    assert done.returncode == 0 and "no compile times recorded yet" in done.stdout
    hostile = dataclasses.replace(compiled(2.0, day=0, source="a"), operator="softmax", device="gpu\x1b[2J")
    with Store.open(tmp_path / "records.sqlite") as store:
        store.add(
            [hostile, dataclasses.replace(compiled(4.0, day=1, source="b"), operator="softmax", device="gpu\x1b[2J")]
        )
    done = opforge("history", "softmax", "--compile", **place)
    assert done.returncode == 0 and "(2.00x of the one before)" in done.stdout and "\x1b" not in done.stdout
    told = json.loads(opforge("history", "softmax", "--compile", "--json", **place).stdout)
    assert [item["seconds"] for item in told[0]["versions"]] == [2.0, 4.0]
    done = opforge("history", "softmax", "--compile", "--implementation", "nobody", **place)
    assert "no compile times recorded yet" in done.stdout
    for words in (("--workload", "tiny"), ("--plot", str(tmp_path))):
        done = opforge("history", "softmax", "--compile", *words, **place)
        assert done.returncode == 2 and "Leave them away" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="as in test_prints")
def test_a_record_keeps_what_its_compiler_took(tmp_path):
    """Of a library when it was made, also for who finds it in the cache; of what compiles nothing, nothing."""
    files = {"cpp_loud.cpp": f"{CPP}\n// {tmp_path}\n", "torch_quiet.py": RIGHT.format("pass")}
    first = record_of(tmp_path / "first", files)
    assert first["cpp_loud"].compile_s > 0.05 and first["torch_quiet"].compile_s is None
    again = record_of(tmp_path / "again", files)
    assert again["cpp_loud"].compile_s == first["cpp_loud"].compile_s
    assert from_json(to_json(again["cpp_loud"])) == again["cpp_loud"]


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="as in test_prints")
def test_what_inductor_takes_inside_of_calls_is_kept(tmp_path):
    """A worker says when it compiles; g++ alone takes tenths of a second for each graph."""
    found = record_of(tmp_path, {"torch_quiet.py": RIGHT.format("pass")}, names=("torch_compile_quiet",))
    assert 0.1 < found["torch_compile_quiet"].compile_s < 300


def test_a_library_that_was_never_made_has_no_time(tmp_path, monkeypatch):
    from opforge.registry import load
    from test_prints import home_of

    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))
    registry = load([home_of(tmp_path / "home", {"cpp_loud.cpp": CPP})])
    assert compile_seconds(registry.implementation("doubled", "cpp_loud"), None, "cpu") is None
