"""The store: what was acknowledged stays, what is wrong stays out, and damage is met without loss."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import Case, Cost
from opforge.core.evidence.record import Adoption, Environment, Record, to_json
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Broken, Mismatch, Pass, Unsupported
from opforge.core.language.errors import EnvironmentLacks, OpforgeError, UsageError
from opforge.store import (
    Damaged,
    Installation,
    Store,
    append_file,
    fact_of,
    insertion,
    read_file,
    read_lines,
    write_file,
)
from opforge.store.files import network_file_system
from opforge.store.schema import ADDED

PASS = Pass(checked=(), not_taken=(("empty", "rows > 0 does not hold"),), isolation="process")
BROKEN = Broken(case=None, dtype="float32", reason="wrong shape", isolation="process")


def record(number: int = 0, *, median_s: float | None = 1e-3, **changes: object) -> Record:
    """A record like a bench makes; `number` is its minute of the day."""
    timing = (
        Timing(
            samples_s=(median_s,) * 5, batch=3, timer="host", cache="warm", overhead_s=1e-8, conditions=("threads 2",)
        )
        if median_s
        else None
    )
    made = Record(
        id=uuid.uuid4().hex,
        created_at=f"2026-11-21T{number // 60:02d}:{number % 60:02d}:00.000+00:00",
        operator="softmax",
        implementation="cpp_twopass",
        backend="cpp",
        source_sha256="0" * 64,
        workload="attention",
        axes={"lead": (12, 256), "cols": 256},
        scalars={"eps": 1e-5, "approximate": "none", "causal": True},
        dtype="float32",
        device="cpu-test",
        config=Config((("block", 256), ("unroll", True))),
        cost=Cost(flops=5, bytes_read=4, bytes_written=4),
        verdict=PASS,
        timing=timing,
        roof_s=1e-4,
        limiter="memory",
        environment=Environment(
            device="Test CPU", host="Test CPU, 2 cores", facts={"python": "3.11", "load.average_1m": "0.5"}
        ),
        run="run1",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "records.sqlite"


@pytest.fixture
def file_store(place: Path):
    """What only a file has: damage, durability, other people's formats."""
    with Store.open(place) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request):
    """A place for records: a file, and a database of its own on a real server."""
    if request.param == "sqlite":
        yield str(request.getfixturevalue("place"))
        return
    server = os.environ.get("OPFORGE_TEST_POSTGRES", "")
    if not server:
        pytest.skip("OPFORGE_TEST_POSTGRES is not set; run: scripts/with-postgres.sh make test")
    psycopg = pytest.importorskip(
        "psycopg", reason="the driver is missing; install it with: pip install 'opforge[postgres]'"
    )
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{server.rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def store(where: str):
    with Store.open(where) as opened:
        yield opened


def raw_store(where: str, *statements: str) -> None:
    """SQL behind the store's back."""
    from opforge.store import connection

    engine = connection.server_engine(where) if "://" in where else connection.file_engine(Path(where))
    with engine.begin() as database:
        for statement in statements:
            database.exec_driver_sql(statement)
    engine.dispose()


def child(code: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python with this file's `record` at hand, in a process of its own."""
    # SQLAlchemy and its driver are loaded once, before any fork
    head = (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; from test_store import *; "
        "Store.open(sys.argv[1]).close()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + code, *arguments], capture_output=True, text=True, check=check, timeout=120
    )


def test_a_record_comes_back_as_it_was(store):
    """Every noun inside, tuples and infinities included."""
    case = Case(name="odd", axes={"cols": 3}, why="odd")
    mismatch = Mismatch(
        case=case,
        dtype="float32",
        output="y",
        index=(1, 2),
        expected=1.0,
        actual=float("inf"),
        tolerance=1e-6,
        wrong=1,
        total=3,
        law=None,
        cause="the last block",
        metrics=None,
        isolation="process",
    )
    written = [
        record(1),
        record(2, verdict=mismatch, median_s=None),
        record(3, verdict=Unsupported(reason="no nvcc"), median_s=None),
    ]
    assert store.add(written) == 3
    assert store.query() == written
    assert store.get(written[1].id) == written[1]


def test_newest_last_whatever_the_order_of_arrival_and_the_zone(store):
    """Imports bring old facts late, and machines write their own zones."""
    late, early, zoned = record(30), record(10), record(0, created_at="2026-11-21T01:20:00+01:00")
    store.add([late, early, zoned])
    assert [found.id for found in store.query()] == [early.id, zoned.id, late.id]
    assert [found.id for found in store.query(limit=2)] == [zoned.id, late.id]
    assert [found.id for found in store.query(since="2026-11-21T00:20:00+00:00")] == [zoned.id, late.id]
    assert [point.id for point in store.series(operator="softmax")] == [early.id, zoned.id, late.id]


def test_filters_choose(store):
    """Each filter alone keeps what it names and nothing else."""
    other = record(
        2,
        operator="relu",
        implementation="torch_eager",
        workload="mlp",
        dtype="float16",
        device="nvidia-h200",
        run="run2",
        environment=Environment(device="H200", host="x, 4 cores", facts={}),
    )
    store.add([record(1), other])
    filters = {
        name: getattr(other, name) for name in ("operator", "implementation", "workload", "dtype", "device", "run")
    }
    for name, value in {**filters, "fingerprint": other.environment.fingerprint}.items():
        assert store.query(**{name: value}) == [other], name
    assert store.query(operator="relu", dtype="float32") == []
    assert store.newest_run() == "run2"


def test_an_id_may_be_shortened(store):
    """People copy the first digits out of a report."""
    one, two = record(1, id="aaaa1111" + "0" * 24), record(2, id="aaaa2222" + "0" * 24)
    store.add([one, two])
    assert store.get("aaaa1") == one
    for wrong, words in (
        ("aaaa", "several records"),
        ("ffff", "No record"),
        ("x%", "hexadecimal"),
        ("", "hexadecimal"),
    ):
        with pytest.raises(UsageError, match=words):
            store.get(wrong)


def test_a_record_is_never_changed(store):
    """The same fact twice is one fact; another fact under its id is refused, and nothing of that batch stays."""
    first = record(1)
    assert (store.add([first]), store.add([first, first])) == (1, 0)
    with pytest.raises(UsageError, match="never changed"):
        store.add([record(2), replace(first, run="another")])
    assert store.query() == [first]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": BROKEN}, "time without a Pass"),
        ({"timing": replace(record().timing, samples_s=())}, "no samples"),
        ({"timing": replace(record().timing, samples_s=(float("nan"),))}, "not finite"),
        ({"id": "my first record"}, "hexadecimal"),
        ({"created_at": "yesterday"}, "not a time"),
        ({"created_at": "2026-11-21T10:00:00"}, "time zone"),
        ({"operator": "soft\0max"}, "plain text"),
        ({"run": "\ud800"}, "plain text"),
    ],
)
def test_what_may_not_be_kept_is_refused(store, changes, words):
    """A time without a Pass is the worst of these: it would become somebody's baseline."""
    with pytest.raises(UsageError, match=words):
        store.add([record(1), record(2, **changes)])
    assert store.query() == []


def test_the_newest_verdict_is_read_and_not_an_old_pass(store):
    """From columns, on each database: what is believed of it is asked in tests/test_belief.py."""
    kept = record(10, implementation="good", median_s=2e-3)
    slower_now = [record(1, implementation="lucky", median_s=1e-9), record(11, implementation="lucky", median_s=3e-3)]
    broken_here = [record(2, implementation="here"), record(3, implementation="here", verdict=BROKEN, median_s=None)]
    broken_cases = [
        record(4, implementation="cases"),
        record(5, implementation="cases", workload="", verdict=BROKEN, median_s=None),
    ]
    mended = [
        record(6, implementation="mended", workload="", verdict=BROKEN, median_s=None),
        record(7, implementation="mended", median_s=5e-3),
    ]
    store.add(
        [
            kept,
            *slower_now,
            *broken_here,
            *broken_cases,
            *mended,
            record(21, device="other"),
            record(22, source_sha256="1" * 64),
        ]
    )
    here = Installation(
        device="cpu-test", sources=dict.fromkeys(("good", "lucky", "here", "cases", "mended"), "0" * 64)
    )
    found = store.beliefs("softmax", here)
    assert [(evidence.implementation, evidence.median_s) for evidence in found.evidence] == [
        ("mended", 5e-3),
        ("good", 2e-3),
        ("lucky", 3e-3),
    ]
    read = next(fact for fact in store.facts("softmax", here)[0] if fact.id == kept.id)
    assert read == fact_of(kept)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.xz"])
def test_what_is_appended_leaves_the_bytes_before_it(tmp_path, ending):
    """A compressed set of 15 MB must not change whole for a line: in git that costs 15 MB."""
    file = tmp_path / f"records.{ending}"
    write_file(file, ["one", "two"])
    before = file.read_bytes()
    append_file(file, ["three"])
    assert read_file(file) == ["one", "two", "three"] and file.read_bytes().startswith(before)
    file.write_bytes(before[: len(before) // 2] + b"\xff\xff")
    with pytest.raises(UsageError, match="Export it again"):
        read_file(file)


def test_an_adoption_is_kept_beside_its_record(store, tmp_path):
    """The record stays as it is; the adoption travels with it, and of a record and a source one is enough."""
    old = record(1, source_sha256="1" * 64)
    adoption = Adoption(
        id=uuid.uuid4().hex,
        created_at=old.created_at,
        record=old.id,
        operator="softmax",
        source_sha256="0" * 64,
        code_sha256="c" * 64,
        how="the same code",
    )
    here = Installation(device="cpu-test", sources={"cpp_twopass": "0" * 64})
    store.add([old])
    assert not store.beliefs("softmax", here).evidence
    assert (store.adopt([adoption]), store.adopt([replace(adoption, id=uuid.uuid4().hex)])) == (1, 0)
    assert [evidence.by for evidence in store.beliefs("softmax", here).evidence] == ["adopted"]
    assert store.get(old.id) == old
    with Store.open(tmp_path / "other.sqlite") as other:
        assert other.import_lines(store.export()) == 1
        assert other.adoptions() == [adoption]


def test_export_and_import_carry_everything(store, tmp_path):
    """Lines of JSON move records between machines; importing twice adds nothing."""
    written = [record(number) for number in range(7)]
    store.add(written)
    lines = list(store.export())
    assert list(read_lines(lines)) == written
    with Store.open(tmp_path / "other.sqlite") as other:
        assert (other.import_lines([lines[0], "", *lines]), other.import_lines(lines)) == (7, 0)
        assert other.query() == written
    assert list(store.export(run="no such run")) == []


def _damage(change: Callable[[dict], object]) -> str:
    data = to_json(record(1))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1, 2]",
        "{}",
        '{"type": "Record"}',
        '{"type": "os.system", "command": "true"}',
        '{"type": "Cost", "flops": 1, "bytes_read": 1, "bytes_written": 1}',
        "[" * 100_000,
        '{"float": "abc"}',
        "9" * 5000,
        _damage(lambda data: data.update(operator=3)),
        _damage(lambda data: data.update(surprise=3)),
        _damage(lambda data: data["environment"].update(facts={"python": ["3.11"]})),
        _damage(lambda data: data["timing"].update(samples_s=["fast"])),
        _damage(lambda data: data.update(verdict=to_json(BROKEN))),
        _damage(lambda data: data.pop("verdict")),
        _damage(lambda data: data.update(id="../../etc/passwd")),
    ],
    # damaged records have names of their own, which differ from worker to worker
    ids=[
        "no json",
        "a list",
        "an empty object",
        "a bare record",
        "a strange type",
        "a cost",
        "deep",
        "a bad float",
        "a long number",
        "operator",
        "surprise",
        "facts",
        "samples",
        "verdict",
        "no verdict",
        "path",
    ],
)
def test_a_bad_line_is_named_and_nothing_is_imported(store, line):
    """Files come from strangers: a half import would leave a history nobody made."""
    good = json.dumps(to_json(record(1)))
    with pytest.raises(UsageError, match=r"^Line 3: .*Nothing was imported\.$") as caught:
        store.import_lines([good, "", line, good])
    assert len(str(caught.value)) < 2000
    assert store.query() == []


JUNK = [
    None,
    True,
    -1,
    1e308,
    10**400,
    "",
    "\0",
    "\ud800",
    [],
    {},
    [[]],
    {"type": "Operator"},
    {"type": "Case"},
    {"float": "nan"},
    {"type": []},
    {"type": "Pass"},
]


def _mutations(count: int):
    """Lines that were nearly a record: characters changed, or one value inside replaced or taken out. Always the same
    ones.
    """
    chance = random.Random(7)
    line = json.dumps(to_json(record(1)))

    def places(data, path=()):
        yield path
        inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
        for key, value in inside:
            yield from places(value, (*path, key))

    known = [path for path in places(json.loads(line)) if path]
    for number in range(count):
        if number % 2:
            characters = list(line)
            for _ in range(chance.randint(1, 4)):
                characters[chance.randrange(len(characters))] = chance.choice('"{}[],:0\\\x00\u20289')
            yield "".join(characters)
            continue
        data = json.loads(line)
        *way, last = chance.choice(known)
        inner = data
        for key in way:
            inner = inner[key]
        if chance.random() < 0.2:
            del inner[last]
        else:
            inner[last] = chance.choice(JUNK)
        yield json.dumps(data)


def test_two_thousand_mutilated_lines_are_taken_or_refused_and_nothing_else():
    """No traceback of another kind, and no message that floods a terminal."""
    taken = refused = 0
    for line in _mutations(2000):
        try:
            list(read_lines([line]))
            taken += 1
        except UsageError as error:
            refused += 1
            assert len(str(error)) < 3000
    assert refused > 1000
    assert taken > 0


def test_doctor_finds_a_sound_store_sound_and_a_changed_body_damaged(file_store, place):
    """One flipped digit inside a page is invisible to SQLite; the checksum sees it, and the others are kept."""
    file_store.add([record(number) for number in range(5)])
    assert (file_store.doctor().records, file_store.doctor().problems) == (5, ())
    with sqlite3.connect(place) as raw:
        raw.execute("UPDATE records SET body = replace(body, 'memory', 'nemory') WHERE sequence = 3")
    raw.close()
    # one damaged body took all others away: it is named, and left out
    assert len(file_store.query()) == 4 and len(file_store.left_out) == 1
    health = file_store.doctor()
    assert "1 of 5" in health.problems[0]
    assert "set aside" in str(health)
    assert len(file_store.query()) == 4


def test_a_newer_schema_is_refused_and_left_as_it_is(store, where):
    """An old opforge must not write into what it doesn't understand."""
    store.add([record(1)])
    store.close()
    served = "://" in where
    raw_store(
        where,
        "UPDATE meta SET value = '99' WHERE key = 'schema'" if served else "PRAGMA user_version = 99",
        *(["DROP INDEX records_timed"] if served else []),
    )
    before = b"" if served else Path(where).read_bytes()
    with pytest.raises(UsageError, match=r"newer opforge \(schema 99.*Install a newer opforge"):
        Store.open(where)
    if served:
        # an index that this version would have made is still missing
        raw_store(where, "CREATE INDEX records_timed ON records (created_at)")
    else:
        assert Path(where).read_bytes() == before


def test_an_older_schema_is_brought_up_and_its_records_are_whole(store, where):
    """What was recorded before a column existed has it all the same: it is read from the body."""
    timed = replace(record(1).timing, samples_s=tuple(1e-3 + 1e-5 * number for number in range(20)), suspect="too fast")
    written = [record(1, timing=timed), record(2), record(3, median_s=None)]
    store.add(written)
    expected = store.series()
    here = Installation(device="cpu-test", sources={"cpp_twopass": "0" * 64})
    believed = store.beliefs("softmax", here)
    assert len(believed.evidence) == 1
    store.close()
    indexes = ("records_run_operator", "records_source", "records_codes")
    back = [
        *(f"DROP INDEX {name}" for name in indexes),
        "DROP TABLE adoptions",
        *(f"ALTER TABLE records DROP COLUMN {name}" for added in ADDED.values() for name in added),
    ]
    raw_store(
        where,
        *back,
        "UPDATE meta SET value = '1' WHERE key = 'schema'",
        *([] if "://" in where else ["PRAGMA user_version = 1"]),
    )
    with Store.open(where) as again:
        assert again.query() == written
        assert again.series() == expected
        assert again.beliefs("softmax", here) == believed
        assert [point.suspect for point in expected] == [True, False, False]
        newest = record(4)
        assert again.add([newest]) == 1
        assert [point.id for point in again.series(timed=True)] == [written[0].id, written[1].id, newest.id]
        assert again.doctor().problems == ()


@pytest.mark.parametrize("where", ["head", "middle", "truncated"])
def test_a_damaged_file_is_set_aside_and_what_is_readable_kept(place, where):
    """The next run works; nothing is deleted; the message says where the old file lies."""
    with Store.open(place) as store:
        store.add([record(number) for number in range(400)])
    content = bytearray(place.read_bytes())
    if where == "head":
        content[:100] = b"\xff" * 100
    elif where == "middle":
        # schema pages are intact, pages of rows and indexes are not
        content[len(content) // 2 : len(content) // 2 + 40_000] = b"\xa5" * 40_000
    else:
        del content[len(content) // 3 :]
    place.write_bytes(content)
    try:
        store = Store.open(place)
        store.query()
    except Damaged as error:
        assert "set aside" in str(error)
        store = Store.open(place)
    with store:
        aside = [
            path
            for path in place.parent.iterdir()
            if ".damaged-" in path.name and not path.name.endswith(("-wal", "-shm"))
        ]
        assert len(aside) == 1
        assert aside[0].read_bytes() == bytes(content)
        kept = len(store.query())
        assert kept == 0 if where == "head" else 0 < kept < 400
        assert store.add([record(1)]) == 1
        assert store.doctor().problems == ()


@pytest.mark.parametrize("way", ["removed", "set aside", "replaced while it is written"])
def test_what_is_added_after_the_file_has_gone_is_found(file_store, place, way, monkeypatch):
    """An open file takes records after its name is another's: they were acknowledged, and nobody found them."""
    first, second = record(1), record(2)
    file_store.add([first])
    if way == "set aside":
        with Store.open(place) as other:
            other._replace()
    elif way == "removed":
        for path in place.parent.iterdir():
            path.unlink()
    else:
        insert = insertion.insert

        def meanwhile(database, rows):
            monkeypatch.setattr(insertion, "insert", insert)
            place.rename(place.with_name("aside"))
            return insert(database, rows)

        monkeypatch.setattr(insertion, "insert", meanwhile)
    assert file_store.add([second]) == 1
    with Store.open(place) as fresh:
        assert [found.id for found in fresh.query()] == ([first.id, second.id] if way == "set aside" else [second.id])
    assert any("begun again" in notice for notice in file_store.notices)
    assert [found.id for found in file_store.query()][-1] == second.id


def test_files_of_others_are_not_touched(tmp_path):
    """A wrong path must not cost anybody a file."""
    notes, foreign = tmp_path / "notes.txt", tmp_path / "theirs.sqlite"
    notes.write_text("my notes")
    with sqlite3.connect(foreign) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    raw.close()
    before = foreign.read_bytes()
    for path, words in ((notes, "not a store"), (foreign, "another program"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=words):
            Store.open(path)
    assert notes.read_text() == "my notes"
    assert foreign.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    """Root may write everywhere, so the question is asked as somebody else."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    # pytest's own folders are closed to others
    for parent in (folder, *folder.parents):
        # the last one is the user's own folder, one higher in a session that has workers
        if parent.stat().st_uid == os.getuid() and parent not in (Path("/tmp"), Path("/")) and "pytest" in str(parent):
            parent.chmod(0o755)
    if os.getuid() != 0:
        folder.chmod(0o555)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "no answer"
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            Store.open(folder / "records.sqlite")
            answer = "opened"
        except OpforgeError as error:
            answer = f"{type(error).__name__}: {error}"
        finally:
            # whatever happened, the child must not run the tests that follow
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(pid, 0)
    assert answer.startswith("EnvironmentLacks:")
    assert "OPFORGE_STORE" in answer


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacks, match="OPFORGE_STORE"):
        Store.open(tmp_path / "file" / "records.sqlite")


def test_a_full_disk_costs_the_new_record_and_no_old_one(file_store):
    """SQLite's own limit of pages stands for the disk."""
    file_store.add([record(1)])

    from sqlalchemy import event

    def limit(connection, _):
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size when that is larger

    event.listen(file_store._engine, "connect", limit)
    file_store.close()
    with pytest.raises(EnvironmentLacks, match="No space is left"):
        for number in range(2, 60):
            file_store.add([record(number)] * 1)
    event.remove(file_store._engine, "connect", limit)
    file_store.close()
    found = file_store.query()
    assert found[0].created_at == record(1).created_at
    assert file_store.doctor().problems == ()
    assert file_store.add([record(99)]) == 1


def test_durability_is_asked_of_sqlite(file_store):
    """WAL with synchronous = FULL (2): a commit that returned survives a power cut, not only a killed process."""
    with file_store._engine.connect() as database:
        assert database.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert database.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert database.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000


KILLED = r"""
import os, random, signal, time
place, rounds = sys.argv[1], int(sys.argv[2])
acknowledged = set()
for turn in range(rounds):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with Store.open(place) as store:
            while True:
                batch = [record(1) for _ in range(3)]
                store.add(batch)
                os.write(writer, "".join(one.id + chr(10) for one in batch).encode())
    os.close(writer)
    chance = random.Random(turn)
    with os.fdopen(reader, "rb", buffering=0) as stream:
        seen = b""
        # every third is killed while it opens the store, the others after some batches, in the middle of the
        # next: counted in batches and not in seconds, because a busy machine would else kill all of them before
        # they write
        wanted = 0 if turn % 3 == 0 else 3 * chance.randint(1, 5)
        while seen.count(b"\n") < wanted:
            part = stream.read(4096)
            assert part, "the writer ended by itself"
            seen += part
        time.sleep(chance.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while part := stream.read(4096):
            seen += part
    acknowledged |= {line for line in seen.decode().splitlines() if len(line) == 32}
with Store.open(place) as store:
    found = {one.id for one in store.query()}
    print(len(acknowledged), len(acknowledged - found), len(found) % 3, store.notices, store.doctor().problems)
"""


def _killed(place: str, rounds: int) -> tuple[int, list[str]]:
    output = child(KILLED, place, str(rounds)).stdout.split(" ", 1)
    return int(output[0]), output[1].split()


def test_kill_9_loses_nothing_that_was_acknowledged(where):
    """Killed while opening and while writing: every acknowledged id is there, batches are whole, nothing is damaged."""
    acknowledged, rest = _killed(where, 15)
    assert acknowledged > 15
    assert rest == ["0", "0", "()", "()"]


@pytest.mark.slow
def test_five_hundred_kills(place):
    """The same, 500 times."""
    acknowledged, rest = _killed(str(place), 500)
    assert acknowledged > 500
    assert rest == ["0", "0", "()", "()"]


WRITERS = """
import os
place, writers, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
children = []
for writer in range(writers):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with Store.open(place) as store:
                for number in range(each):
                    store.add([record(number, run=str(writer))])
            status = 0
        finally:
            os._exit(status)
    children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
"""


@pytest.mark.parametrize("each", [8, pytest.param(250, marks=pytest.mark.slow)])
def test_eight_writers_at_once_all_get_in(where, each):
    """They open the same new file at the same time, and nobody sees "locked"."""
    done = child(WRITERS, where, "8", str(each))
    assert done.stdout.strip() == str([0] * 8), done.stderr
    with Store.open(where) as store:
        assert {run: len(store.query(run=run)) for run in map(str, range(8))} == {str(run): each for run in range(8)}


def test_network_file_systems_are_recognised():
    """SQLite's locks fail silently there; the nearest mount decides."""
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /home rw shared:3 - nfs4 server:/home rw\n3 2 8:2 / "
        "/home/me/local rw - xfs /dev/sdb rw"
    )
    assert network_file_system(Path("/home/me/records.sqlite"), mounts) == "nfs4"
    assert network_file_system(Path("/home/me/local/records.sqlite"), mounts) is None
    assert network_file_system(Path("/var/records.sqlite"), mounts) is None


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ("postgresql://somebody:secret@127.0.0.1:1/x", EnvironmentLacks, "Install|Start the server"),
        ("nosuchdatabase://x/y", UsageError, "No database is called"),
        ("://", UsageError, "not understood"),
        (":memory:", UsageError, "needs a file"),
        ("sqlite://", UsageError, "needs a file"),
    ],
)
def test_urls_that_cannot_be_reached_say_what_to_do(where, error, words):
    """And a password in a URL is nobody's business."""
    with pytest.raises(error, match=words) as caught:
        Store.open(where)
    assert "secret" not in str(caught.value)


def test_the_place_comes_from_the_environment(monkeypatch, tmp_path):
    """$OPFORGE_STORE first, then the user's data folder."""
    monkeypatch.setenv("OPFORGE_STORE", f"sqlite:///{tmp_path}/a.sqlite")
    with Store.open() as store:
        assert store.url == str(tmp_path / "a.sqlite")
    monkeypatch.delenv("OPFORGE_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with Store.open() as store:
        assert store.url == str(tmp_path / "data" / "opforge" / "records.sqlite")
