"""The one place that decides which evidence is believed, and that dispatch asks it: with a simulated store, no kernel
runs.
"""

import contextlib
import dataclasses
import sqlite3
import time
import uuid

import pytest

import simulated
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import Case
from opforge.core.evidence.record import Adoption
from opforge.core.evidence.verdict import Broken, Mismatch, Pass, Unsupported
from opforge.dispatch import Chooser
from opforge.dispatch.installation import installation_of
from opforge.machine import detect
from opforge.registry import load
from opforge.store import Installation, Store, believed, fact_of

NOW = "1" * 64
BEFORE = "2" * 64
HERE = Installation(
    device="cpu", sources={"cpp_simd": NOW, "torch_eager": NOW}, versions={"g++": "13.3.0", "torch": "2.13.0"}
)
MISMATCH = Mismatch(
    case=Case(name="odd", axes={"n": 7}, why="a test"),
    dtype="float32",
    output="y",
    index=(0,),
    expected=1.0,
    actual=2.0,
    tolerance=1e-6,
    wrong=1,
    total=7,
    law=None,
    cause="a test",
    metrics=simulated.metrics(1.0),
    isolation="none",
)


def made(seconds=1e-3, day=0, *, implementation="cpp_simd", **changes):
    record = simulated.record(seconds or 1e-3, day=day, implementation=implementation)
    changes = {"source_sha256": NOW, **changes}
    if not seconds or not isinstance(changes.get("verdict", record.verdict), Pass):
        changes["timing"] = None
    return dataclasses.replace(record, **changes)


def beliefs(*records, here=HERE, adoptions=()):
    return believed([fact_of(record) for record in records], here, adoptions)


def medians(found):
    return [evidence.median_s for evidence in found.evidence]


def test_the_newest_verdict_stands():
    """A kernel that passed last week and fails now is not believed, whatever workload it was timed on; mended, it is
    again.
    """
    old, failed, mended = made(1e-3, 0), made(None, 1, verdict=MISMATCH), made(2e-3, 2)
    assert medians(beliefs(old)) == [pytest.approx(1e-3)]
    found = beliefs(failed, old)
    assert not found.evidence and "Mismatch on some" in found.doubts["cpp_simd", "float32"]
    elsewhere = made(1e-3, 2, workload="other")
    assert not beliefs(old, failed, elsewhere).evidence, "it is still wrong on the first workload"
    assert medians(beliefs(old, failed, mended)) == [pytest.approx(2e-3)]


def test_a_failure_on_the_cases_takes_every_config_with_it():
    tuned = made(1e-3, 0, config=Config((("B", 2),)))
    failed = made(
        None, 1, workload="", verdict=Broken(case=None, dtype="float32", reason="wrong shape", isolation="none")
    )
    again = made(2e-3, 2)
    assert not beliefs(tuned, failed).evidence
    assert [evidence.config for evidence in beliefs(tuned, failed, again).evidence] == [Config()], (
        "the tuned config has not passed since"
    )


def test_a_failing_config_is_the_only_one_that_fails():
    other = Config((("B", 2),))
    found = beliefs(made(1e-3, 0), made(None, 1, config=other, verdict=MISMATCH, trial=True))
    assert medians(found) == [pytest.approx(1e-3)] and ("cpp_simd", "float32", other) in found.refused


def test_what_was_not_taken_says_nothing():
    assert beliefs(made(1e-3, 0), made(None, 1, verdict=Unsupported(reason="too wide"))).evidence


def test_a_suspect_time_is_nobodys():
    """The verdict counts, and an older time that can be true stands."""
    found = beliefs(
        made(1e-3, 0), made(1e-9, 1, timing=simulated.record(1e-9, suspect="faster than the memory").timing)
    )
    assert medians(found) == [pytest.approx(1e-3)]
    alone = beliefs(made(1e-9, 1, timing=simulated.record(1e-9, suspect="faster than the memory").timing))
    assert medians(alone) == [None] and alone.passes("cpp_simd", "float32") and not alone.timed()


def test_a_time_that_is_not_steady_ranks_lower():
    """By the far end of its interval; where a steady one of the same call is there, it stands, though it is older."""
    shaky = made(1e-3, 1, timing=simulated.record(1e-3, spread=0.5).timing)
    (evidence,) = beliefs(shaky).evidence
    assert not evidence.steady and evidence.ranked_s > 1.02 * evidence.median_s
    assert medians(beliefs(made(2e-3, 0), shaky)) == [pytest.approx(2e-3)]


def test_a_point_of_a_search_is_nobodys_evidence():
    """It was verified on a selection of cases, and its time was not audited."""
    assert not beliefs(made(1e-3, 0, trial=True)).evidence
    assert not beliefs(dataclasses.replace(made(1e-3, 0), run="tune-1234")).evidence, (
        "before records said so themselves"
    )


def test_evidence_is_of_what_is_there_now():
    """Of the same source, of a code that it is known to compile to, or adopted for it."""
    old = made(1e-3, 0, source_sha256=BEFORE, code_sha256="c" * 64)
    assert not beliefs(old).evidence and "opforge records adopt" in beliefs(old).doubts["cpp_simd", "float32"]
    (evidence,) = beliefs(old, here=dataclasses.replace(HERE, code_of={"cpp_simd": "c" * 64}.get)).evidence
    assert (evidence.by, evidence.median_s) == ("code", pytest.approx(1e-3))
    assert not beliefs(old, here=dataclasses.replace(HERE, code_of={"cpp_simd": "d" * 64}.get)).evidence
    adoption = Adoption(
        id=uuid.uuid4().hex,
        created_at=old.created_at,
        record=old.id,
        operator="softmax",
        source_sha256=NOW,
        code_sha256="",
        how="one program",
    )
    assert [(evidence.by, evidence.record) for evidence in beliefs(old, adoptions=[adoption]).evidence] == [
        ("adopted", old.id)
    ]
    elsewhere = dataclasses.replace(adoption, source_sha256="3" * 64)
    assert not beliefs(old, adoptions=[elsewhere]).evidence


def test_another_device_or_toolchain_is_no_evidence():
    known = {"version.g++": "13.2.1", "version.torch": "2.13.0"}
    here = dataclasses.replace(made(1e-3), environment=dataclasses.replace(made().environment, facts=known))
    assert beliefs(here).evidence, "the first number of g++ counts"
    other = dataclasses.replace(
        here, environment=dataclasses.replace(here.environment, facts={"version.g++": "14.1.0"})
    )
    assert not beliefs(other).evidence and "g++ 14.1.0" in beliefs(other).doubts["cpp_simd", "float32"]
    assert not beliefs(dataclasses.replace(here, device="another")).evidence


@pytest.fixture
def choose(tmp_path):
    """Dispatch on a store that holds these records: the choice for a call of gelu."""
    registry, where = load(), tmp_path / "records.sqlite"
    sources = {item.name: source_sha256(item.source) for item in registry.implementations("gelu")}

    def choice(*records):
        real = {
            "operator": "gelu",
            "device": detect("cpu").name,
            "axes": {"shape": (4, 33)},
            "scalars": {"approximate": "none"},
        }
        with Store.open(where) as store:
            store.add(
                dataclasses.replace(record, **real, source_sha256=sources[record.implementation]) for record in records
            )
        return Chooser(registry, str(where)).choose(
            registry.operator("gelu"), {"shape": (4, 33)}, "float32", {"approximate": "none"}, "cpu", ["contiguous"]
        )

    return choice


def test_an_adopted_record_outlives_the_next_edit_that_changes_nothing():
    """It was adopted for a source between then and now, of which another record says the code; today's source says the
    same to the compiler. Where it says something else, nothing holds.
    """
    between, code = "3" * 64, "c" * 64
    old = made(1e-3, source_sha256=BEFORE, code_sha256="")
    known = made(2e-3, 1, source_sha256=between, code_sha256=code, workload="other")
    marks = [
        Adoption(
            id="a" * 32, created_at=old.created_at, record=old.id, operator=old.operator, source_sha256=between,
            code_sha256="", how="a test",
        )
    ]  # fmt: skip

    def held(now_code):
        here = dataclasses.replace(HERE, code_of=lambda name: now_code)
        return {item.workload: item.by for item in beliefs(old, known, here=here, adoptions=marks).evidence}

    assert held(code) == {"some": "adopted", "other": "code"}
    assert held("d" * 64) == {}


def _measured_nine_times_more(where):
    """Every record once more in each of nine later months: rows under other ids, for making records costs a minute."""
    with contextlib.closing(sqlite3.connect(where)) as database, database:
        names = [name for _, name, *_ in database.execute("PRAGMA table_info(records)") if name != "sequence"]
        changed = {"id": "lower(hex(randomblob(16)))", "created_at": "'2026-' || month || substr(created_at, 8)"}
        months = " UNION ALL ".join(f"SELECT '{month:02d}' AS month" for month in range(2, 11))
        database.execute(
            f"INSERT INTO records ({', '.join(names)}) "
            f"SELECT {', '.join(changed.get(name, name) for name in names)} FROM records, ({months}) ORDER BY month"
        )


@pytest.mark.campaign
def test_a_first_call_does_not_wait_for_history(tmp_path, capsys):
    """100,000 records of twenty operators, a tenth of them of the sources as they are now: what is believed of one is
    known within 50 ms.
    """
    registry, where = load(), tmp_path / "records.sqlite"
    base = simulated.record(1e-3, samples=5)
    names = registry.names()[:20]
    with Store.open(where) as store:
        for name in names:
            items, here = registry.implementations(name), installation_of(registry, name, "cpu")
            codes = {item.name: here.code_of(item.name) for item in items}

            def nth(number, items=items, here=here, name=name, codes=codes):
                item, now = items[number % len(items)], number // len(items) % 10 == 0
                sources = {"source_sha256": here.sources[item.name], "code_sha256": codes[item.name]}
                stale = {"source_sha256": f"{number % 40:064d}", "code_sha256": f"{number % 40:064x}"}
                fields = {
                    "workload": f"w{number % 13}",
                    "axes": {"n": number % 13},
                    "created_at": f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:00:00+00:00",
                }
                fields |= {
                    "dtype": ("bfloat16", "float16", "float32")[number % 3],
                    "config": Config((("B", number % 4),)),
                }
                return dataclasses.replace(
                    base,
                    id=uuid.uuid4().hex,
                    operator=name,
                    implementation=item.name,
                    backend=item.backend,
                    **fields,
                    **(sources if now else stale),
                )

            store.add(map(nth, range(500)))
    _measured_nine_times_more(where)
    with contextlib.closing(sqlite3.connect(where)) as database:
        assert database.execute("SELECT count(*) FROM records").fetchone() == (100_000,)
    taken = []
    for name in names:
        here, spent = installation_of(registry, name, "cpu"), []
        # in a store opened anew each time; the least of three, because tests beside this one lengthen every step
        for _ in range(3):
            with Store.open(where) as store:
                begun = time.process_time()
                found = store.beliefs(name, here)
                spent.append(time.process_time() - begun)
        taken.append(min(spent))
        assert {item.by for item in found.evidence} == {"source"}
    with capsys.disabled():
        print(
            f"beliefs of an operator among 100,000 records: median {sorted(taken)[10] * 1e3:.1f} ms, at most "
            f"{max(taken) * 1e3:.1f} ms"
        )
    assert sorted(taken)[10] <= 0.05


def test_dispatch_does_not_choose_what_fails_now(choose):
    """At 8a92ccb it took any Pass of the source, and chose the failing kernel."""
    found = choose(made(1e-6, 0), made(1e-3, 0, implementation="torch_eager"), made(None, 1, verdict=MISMATCH))
    assert found.implementation.name == "torch_eager"
    assert any(name == "cpp_simd" and "Mismatch" in reason for name, reason in found.passed_over)


def test_dispatch_does_not_choose_by_a_suspect_time(choose):
    """At 8a92ccb it chose the time of 1 ns."""
    suspect = simulated.record(1e-9, suspect="faster than the memory").timing
    found = choose(made(1e-9, 0, timing=suspect), made(1e-3, 0, implementation="torch_eager"))
    assert found.implementation.name == "torch_eager"


def test_dispatch_does_not_choose_a_point_of_a_search(choose):
    found = choose(made(1e-6, 0, trial=True), made(1e-3, 0, implementation="torch_eager"))
    assert found.implementation.name == "torch_eager"
