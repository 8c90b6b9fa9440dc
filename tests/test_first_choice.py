"""What a first call waits for: no more work than the choice needs, however much history there is. Work is counted and
not timed, because tests beside these lengthen every second.
"""

import contextlib
import dataclasses
import itertools
import sqlite3

import pytest

import simulated
from opforge.core.definition.implementation import Config
from opforge.core.evidence.record import Adoption
from opforge.dispatch import Chooser, beliefs as knowing
from opforge.dispatch.installation import installation_of
from opforge.machine import descriptors, detect
from opforge.registry import load
from opforge.roofline.time_model import Model, TimedCall, pick, place_of
from opforge.runner.worker.manner import manner_as
from opforge.store import Store, evidence_query
from opforge.store.evidence_query import facts_in_file

BEFORE = "0" * 64


def kept(store, here, **changes):
    """A record of today's source of softmax's cpp_twopass in the store."""
    fields = {"source_sha256": here.sources["cpp_twopass"], "code_sha256": "c" * 64, **changes}
    made = simulated.record(fields.pop("seconds", 1e-3), implementation="cpp_twopass", samples=5)
    made = dataclasses.replace(made, device=here.device, backend="cpp", **fields)
    store.add([made])
    return made


@pytest.fixture
def here():
    """What softmax's evidence on this CPU is held against, and no hash of a program can be made."""

    def made(name):
        raise AssertionError(f"the program of {name} was hashed")

    found = installation_of(load(), "softmax", detect("cpu").name)
    return dataclasses.replace(found, code_of=made)


def test_a_file_says_what_the_store_says_of_it(tmp_path, here):
    """Passes, a failure, an adopted record, the code of another source, a point of a search, another operator's."""
    where = tmp_path / "records.sqlite"
    with Store.open(where) as store:
        for size in (2, 3):
            kept(store, here, workload=f"w{size}", axes={"lead": (size,), "cols": 4}, config=Config((("B", size),)))
        kept(store, here, source_sha256=BEFORE, dtype="float16")
        kept(store, here, source_sha256=BEFORE, code_sha256="d" * 64, dtype="bfloat16")
        old = kept(store, here, source_sha256=BEFORE, code_sha256="", workload="old")
        kept(store, here, trial=True, workload="tried")
        kept(store, here, operator="layernorm")
        store.adopt(
            [
                Adoption(
                    record=old.id, operator="softmax", source_sha256=here.sources["cpp_twopass"], code_sha256="",
                    created_at=old.created_at, id="a" * 32, how="a test",
                )
            ]
        )  # fmt: skip
        said = store.facts("softmax", here)
    assert facts_in_file(where, "softmax", [here]) == [said]
    assert [fact.dtype for fact in said[0]].count("float16") == 1, "of the same code as today's source"
    assert {fact.workload for fact in said[0]} == {"some", "w2", "w3", "old"}
    assert all(isinstance(getattr(fact, name), bool) for fact in said[0] for name in ("suspect", "steady", "trial"))


def test_only_the_store_speaks_of_a_file_that_needs_its_care(tmp_path, here):
    """An earlier schema, another program's file, a damaged one, and records that wait beside it."""
    where = tmp_path / "records.sqlite"
    assert facts_in_file(where, "softmax", [here, here]) == [([], []), ([], [])], "there is none, and one is begun"
    with Store.open(where) as store:
        kept(store, here)
    assert len(facts_in_file(where, "softmax", [here])[0][0]) == 1
    waiting = where.with_name("records.sqlite.waiting.jsonl")
    waiting.touch()
    assert facts_in_file(where, "softmax", [here]) is None
    waiting.unlink()
    with sqlite3.connect(where) as database:
        database.execute("PRAGMA user_version = 6")
    database.close()
    assert facts_in_file(where, "softmax", [here]) is None
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE somebody (name)")
    database.close()
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(where.read_bytes()[:4096] + b"\xff" * 8192)
    for file in (other, broken, tmp_path):
        assert facts_in_file(file, "softmax", [here]) is None, file


def test_a_choice_loads_no_database_library_and_hashes_no_program(tmp_path, here, monkeypatch):
    """SQLAlchemy takes a fifth of a second to import, a program 10 to 40 ms to hash: with records of other sources each
    implementation's was, and what the records say of today's source was not looked at.
    """
    where = tmp_path / "records.sqlite"
    with Store.open(where) as store:
        kept(store, here, axes={"lead": (4,), "cols": 8}, scalars={})
        for number in range(3):
            kept(store, here, source_sha256=f"{number}" * 64, code_sha256="d" * 64)

    def opened(*_):
        raise AssertionError("the store was opened")

    monkeypatch.setattr(knowing, "Store", type("Store", (), {"open": opened}))
    registry = load()
    chooser = Chooser(registry, str(where))
    monkeypatch.setattr("opforge.dispatch.choose.installation_of", lambda *_: here)
    operator = registry.operator("softmax")
    found = chooser.choose(operator, {"lead": (4,), "cols": 8}, "float32", {}, "cpu", ["contiguous"])
    assert found.implementation.name == "cpp_twopass", found


def test_history_of_other_sources_is_not_read(tmp_path, here):
    """Rows that a choice gets do not grow with what was recorded of sources that are no more."""
    where = tmp_path / "records.sqlite"

    def rows_read():
        counted = []

        def ask(question, parameters):
            rows = database.execute(question, parameters).fetchall()
            counted.append(len(rows))
            return rows

        with contextlib.closing(sqlite3.connect(where)) as database:
            found, _ = evidence_query.facts(ask, "softmax", here)
        assert [fact.workload for fact in found] == ["now"]
        return counted

    with Store.open(where) as store:
        kept(store, here, workload="now")
        for number in range(12):
            kept(store, here, source_sha256=f"{number % 3}" * 64, code_sha256="d" * 64, workload=f"then{number}")
        few = rows_read()
        for number in range(60):
            kept(store, here, source_sha256=f"{number % 3}" * 64, code_sha256="d" * 64, workload=f"then{number}")
            kept(store, here, source_sha256=f"{number % 3}" * 64, operator="layernorm")
    assert rows_read() == few == [4, 1, 0]


def test_distances_are_of_calls_and_not_of_implementations(monkeypatch):
    """Ten kernels timed at the same calls: a choice measures each call's distance once."""
    registry, h200 = load(), descriptors()["nvidia-h200"]
    operator = registry.operator("softmax")

    def at(rows, cols):
        axes = {"lead": (rows,), "cols": cols}
        return place_of(operator, axes, "bfloat16", {}, manner_as(operator, axes, "bfloat16", {}, "contiguous"), h200)

    items = registry.implementations("softmax")
    places = [at(2**rows, 2**cols) for rows, cols in itertools.product((4, 8), (6, 10, 14))]
    seen = [TimedCall(item.name, Config(), place, 1e-5, "") for place in places for item in items]
    model, measured = Model(operator, items, seen), []
    plain = Model.octaves
    monkeypatch.setattr(Model, "octaves", lambda self, one, other: measured.append(1) or plain(self, one, other))
    assert pick(model, items, at(100, 3000)).guess is not None
    assert len(measured) == len(places)
