"""A lock on the store that somebody holds, through a descriptor that can only be read from: no record is lost
for it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.test_store import record

from opforge.store import Store, connection, deferred_writes

HOLDER = """
    import fcntl, os, struct, sys, time
    held = [os.open(name, os.O_RDONLY) for name in sys.argv[1:]]
    for descriptor in held:
        fcntl.fcntl(descriptor, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 0, 0))
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A store that another process has locked for reading, and that process."""
    monkeypatch.setattr(connection, "BUSY_S", 0.3)
    store = Store.open(tmp_path / "records.sqlite")
    store.add([record(0)])
    names = [str(path) for path in tmp_path.glob("records.sqlite*")]
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), *names], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    yield store, holder
    holder.kill()
    holder.wait()
    holder.stdout.close()
    store.close()


def test_records_wait_beside_a_store_that_somebody_has_locked(held, tmp_path):
    """A run of hours must not end in nothing because a kernel holds a read lock."""
    store, holder = held
    told: list[str] = []
    store.tell = told.append
    assert store.add([record(1)]) == 1 and store.add([record(2)]) == 1
    place = deferred_writes.place_of(tmp_path / "records.sqlite")
    assert len(place.read_text().splitlines()) == 2 and len(told) == 1 and f"opforge records import {place}" in told[0]
    holder.kill()
    holder.wait()
    store.close()
    with Store.open(tmp_path / "records.sqlite") as again:
        assert (
            len(again.query()) == 3 and not place.exists() and any("were added" in notice for notice in again.notices)
        )


def test_what_waits_can_be_imported_like_an_export(held, tmp_path):
    """What the message says works, in another store too."""
    store, _ = held
    store.add([record(3)])
    with Store.open(tmp_path / "other.sqlite") as other:
        assert other.import_lines(deferred_writes.place_of(tmp_path / "records.sqlite").read_text().splitlines()) == 1
