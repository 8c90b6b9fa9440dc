"""What is measured again, and what is not: the order of `make gpu`, and verifications that stand."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Crash, Inaccurate, Mismatch, Pass, Statement
from opforge.registry import load
from opforge.store import Store, read_file, read_lines
from opforge.trial import verified_before as proven_of
from opforge.workbench.renewal import MISSING, NEVER, OLD, STALE, UNSTEADY, WRONGLY, batches


@pytest.fixture(scope="module")
def recorded():
    """A timed record of a real run, to make others from."""
    lines = read_file(Path(__file__).parent.parent / "results" / "cpu.jsonl.xz")
    return next(
        record
        for record in read_lines(lines)
        if record.timing is not None and isinstance(record.verdict, Pass) and record.backend in ("torch", "cpp")
    )


def order_of(rows, now=("a", "b")):
    """The batches of one operator with one workload in float32, of which `rows` (records) are known and sources `now`
    are current.
    """
    workload = SimpleNamespace(name="w")
    operator = SimpleNamespace(name="op", dtypes=("float32",), takes=lambda workload, dtype: True)
    return batches(
        [operator],
        lambda name: ["a", "b"],
        lambda item: [workload],
        lambda name: rows,
        lambda name, record: record.source_sha256 in now,
    )


def row(recorded, name, median_s, source, created_at="2026-01-02", workload="w", suspect=()):
    timing = dataclasses.replace(recorded.timing, samples_s=(median_s,) * 5, suspect=suspect)
    return dataclasses.replace(recorded, id=f"{name}{source}{created_at}", operator="op", implementation=name,
    workload=workload, dtype="float32", source_sha256=source,
                               created_at=created_at, timing=timing)  # fmt: skip


@pytest.mark.parametrize(
    ("fast", "slow", "need"),
    [
        (("a", "old"), ("b", "b"), WRONGLY),
        (("a", "a"), ("b", "old"), STALE),
        (("a", "a"), ("b", "b"), OLD),
        (("a", "a"), None, MISSING),
    ],
)
def test_what_users_would_be_given_wrongly_is_first(recorded, fast, slow, need):
    """The fastest row is what dispatch would pick if it were of today's code; a stale slower one misleads nobody."""
    rows = [row(recorded, fast[0], 1e-3, fast[1])] + ([row(recorded, slow[0], 2e-3, slow[1])] if slow else [])
    (batch,) = order_of(rows)
    assert (batch.need, batch.rows) == (need, 2)


def test_what_no_ratio_may_be_made_of_is_measured_again(recorded):
    """After everything that is stale or missing, and before what is merely old."""
    steady, drifting = row(recorded, "a", 1e-3, "a"), row(recorded, "b", 2e-3, "b")
    samples = (1e-3,) * 40 + (2e-3,) * 40
    drifting = dataclasses.replace(drifting, timing=dataclasses.replace(drifting.timing, samples_s=samples))
    assert steady.timing.steady and not drifting.timing.steady
    (batch,) = order_of([steady, drifting])
    assert batch.need == UNSTEADY


def test_calls_of_equal_need_are_one_batch_and_what_was_never_timed_comes_after_what_is_stale(recorded):
    """A slice that ends early has renewed what tables and dispatch rest on; workers serve all calls of a batch."""
    rows = [row(recorded, name, 1e-3, "old", workload=of) for name in ("a", "b") for of in ("w1", "w2")]
    rows += [row(recorded, name, 1e-3, name, workload="w3") for name in ("a", "b")]
    workloads = [SimpleNamespace(name=f"w{number}") for number in range(5)]
    operator = SimpleNamespace(name="op", dtypes=("float32",), takes=lambda workload, dtype: True)
    found = batches(
        [operator],
        lambda name: ["a", "b"],
        lambda item: workloads,
        lambda name: rows,
        lambda name, record: record.source_sha256 in ("a", "b"),
    )
    assert [(batch.need, batch.workloads, batch.rows) for batch in found] == [
        (WRONGLY, ("w1", "w2"), 4),
        (NEVER, ("w0", "w4"), 4),
        (OLD, ("w3",), 2),
    ]


def test_calls_whose_rows_are_all_newer_may_be_left_out(recorded):
    """What a slice of yesterday didn't come to, without what it did."""
    old, new = "2026-02-01T10", "2026-02-02T10"
    dates = {"w1": (new, new), "w2": (new, old), "w3": (old, old)}
    rows = [
        row(recorded, name, 1e-3, name, workload=of, created_at=date)
        for of, both in dates.items()
        for name, date in zip(("a", "b"), both, strict=True)
    ]
    operator = SimpleNamespace(name="op", dtypes=("float32",), takes=lambda workload, dtype: True)
    workloads = [SimpleNamespace(name=f"w{number}") for number in range(5)]

    def asked(before: str) -> list[str]:
        found = batches(
            [operator],
            lambda name: ["a", "b"],
            lambda item: workloads,
            lambda name: rows,
            lambda name, record: True,
            before=before,
        )
        return sorted(name for batch in found for name in batch.workloads)

    assert asked("2026-02-02") == ["w0", "w2", "w3", "w4"]
    assert asked(old) == ["w0", "w4"]
    assert asked("") == ["w0", "w1", "w2", "w3", "w4"]


def test_a_verification_alone_takes_no_time_away_and_a_failure_does(recorded):
    """A slice that begins with verifications would else take every workload for one that was never timed."""
    rows = [row(recorded, "a", 1e-3, "a"), row(recorded, "b", 2e-3, "old")]
    later = row(recorded, "b", 2e-3, "b", created_at="2026-02-02", workload="")
    verified = dataclasses.replace(later, timing=None)
    assert order_of([*rows, verified])[0].need == STALE
    failed = dataclasses.replace(
        verified, verdict=Crash(case=None, dtype="float32", status=-11, stderr="", isolation="")
    )
    assert order_of([*rows, failed])[0].need == OLD


def test_a_newer_row_takes_the_place_of_a_stale_one(recorded):
    """A slice that went before is not measured again first."""
    rows = [
        row(recorded, "a", 1e-3, "old"),
        row(recorded, "b", 2e-3, "b"),
        row(recorded, "a", 1e-3, "a", created_at="2026-02-02"),
    ]
    assert order_of(rows)[0].need == OLD
    assert order_of(rows[::-1])[0].need == OLD


def test_a_verification_stands_until_code_cases_or_verifier_change(recorded, tmp_path, monkeypatch):
    """And a bench with fewer cases, a record without its version, or another config is no such verification."""
    registry = load(())
    operator = registry.operator(recorded.operator)
    implementation = registry.implementation(recorded.operator, recorded.implementation)
    source = proven_of.source_sha256(implementation.source)
    monkeypatch.setattr(proven_of, "versions", dict)
    verdict = dataclasses.replace(recorded.verdict, statements=())
    today = dataclasses.replace(
        recorded, source_sha256=source, config=implementation.default, verdict=proven_of.stated(verdict, operator)
    )

    def stands(record):
        with Store.open(tmp_path / f"{record.id}.sqlite") as store:
            store.add([record])
            return proven_of.proven(store, registry, [recorded.operator], today.device)

    def other(number, **changes):
        return dataclasses.replace(today, id=f"{number:032x}", **changes)

    found = stands(other(1))[(recorded.operator, recorded.implementation, recorded.dtype)]
    assert {case.case.name for case in found.checked}.isdisjoint(workload.name for workload in operator.workloads)
    assert found.checked
    assert found.states(proven_of.BEFORE)
    # another text of the same program is the same; another program is not
    assert bool(stands(other(7, source_sha256="0" * 64))) == bool(recorded.code_sha256)
    assert not stands(other(2, source_sha256="0" * 64, code_sha256=""))
    assert not stands(other(3, verdict=verdict))
    stale = Statement(name=proven_of.VERSION, holds=True, detail="0" * 16)
    assert not stands(other(4, verdict=dataclasses.replace(verdict, statements=(stale,))))
    assert not stands(other(5, device="another"))


def test_a_baseline_that_was_found_inaccurate_is_not_found_so_again(recorded, tmp_path, monkeypatch):
    """It costs 4 to 10 s of each operator and dtype, and nobody chooses it. What a workload found says nothing of the
    cases, and a newer verdict, another source or another toolchain ask again.
    """
    registry = load(())
    baseline = next(item for item in registry.implementations("mean_var") if item.name == "torch_eager")
    assert baseline.inaccurate
    monkeypatch.setattr(proven_of, "versions", lambda: {"torch": "2.11.0"})
    found = Mismatch(
        case=Case(name="offset", axes={}, why="w"), dtype="float32", output="y", index=(0,), expected=1.0, actual=2.0,
        tolerance=0.1, wrong=1, total=1, law=None, cause="", metrics=None, isolation="", window=None,
    )  # fmt: skip
    today = dataclasses.replace(
        recorded,
        operator="mean_var",
        implementation=baseline.name,
        backend=baseline.backend,
        dtype="float32",
        trial=False,
        config=baseline.default,
        source_sha256=proven_of.source_sha256(baseline.source),
        environment=dataclasses.replace(recorded.environment, facts={"version.torch": "2.11.1"}),
        verdict=Inaccurate(reason=baseline.inaccurate, found=found),
        timing=None,
    )

    def known(*changes):
        with Store.open(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite") as store:
            store.add([dataclasses.replace(today, id=f"{n:032x}", **change) for n, change in enumerate(changes)])
            return list(proven_of.inaccurate_before(store, registry, "mean_var", today.device))

    assert known({}) == [("mean_var", "torch_eager", "float32")]
    workload = registry.operator("mean_var").workloads[0].name
    of_workload = dataclasses.replace(found, case=dataclasses.replace(found.case, name=workload))
    assert not known({"verdict": Inaccurate(reason="r", found=of_workload)})
    assert not known({}, {"verdict": recorded.verdict, "created_at": "2999-01-01T00:00:00.000+00:00"})
    assert not known({"source_sha256": "0" * 64})
    assert not known({"environment": dataclasses.replace(today.environment, facts={"version.torch": "2.10.0"})})
