"""What a check looks at: the cases of a baseline, measured now, interleaved with the baseline's own code where it can
still be had.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from opforge.backends.program_hash import program_sha256
from opforge.backends.shared_code import PACKAGE, source_sha256
from opforge.core.definition.own_shapes import workload_named
from opforge.core.evidence.record import Record
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Pass
from opforge.core.language.errors import UsageError
from opforge.gate.baseline import Baseline, key_of
from opforge.gate.check import Policy, Sight, settled_for
from opforge.gate.history import SeriesKey
from opforge.machine import tracked_root
from opforge.registry import Registry
from opforge.runner import Host
from opforge.store import Store, holds
from opforge.timing import Plan, Rule, compare_recorded
from opforge.workbench.bench import BenchOptions, bench, environment_of
from opforge.workbench.compare import compare_sides
from opforge.workbench.sides import Side, folder_at

RECORDED_BAND = 0.05
LOOKED_BACK = 200
"""Records of a case that are read for its threshold; the newest hundred that passed count."""


def remeasurer(
    registry: Registry, baseline: Baseline, host: Host, policy: Policy, plan: Plan, *, device: str, scratch: Path
) -> Callable[[Sequence[SeriesKey]], Mapping[SeriesKey, Sight]]:
    """The `look` of a gate's check.

    Where the baseline's record names a commit, is of a clean tree and git still has it, that revision's implementation
    is run interleaved with today's. Elsewhere today's is held against the recorded samples, on a machine with the same
    fingerprint only, with a dead band as wide as a machine drifts.
    """
    records = baseline.by_key()

    def look(keys: Sequence[SeriesKey]) -> dict[SeriesKey, Sight]:
        sights: dict[SeriesKey, Sight] = {}
        for key in keys:
            record = records[key]
            revision = _runnable_revision(registry, record, scratch)
            allowed = baseline.thresholds.get(str(key), policy.allowed)
            try:
                if revision:
                    sights[key] = _beside_revision(registry, key, revision, host, plan, allowed, device)
                else:
                    sights[key] = _beside_record(registry, key, record, host, plan, device)
            except UsageError as error:
                sights[key] = Sight(comparison=None, reason=str(error), baseline=record.verdict)
        return sights

    return look


def unchanged(registry: Registry, baseline: Baseline, device: str, plan: Plan) -> tuple[SeriesKey, ...]:
    """The cases whose implementation is what the baseline measured, by its source or its code (store.holds), on a
    machine with its fingerprint, where nothing else of the operator and of opforge was touched but other kernels'
    sources. Where that cannot be told, a case is not among them.
    """
    sources = tuple(item.source.resolve() for name in registry.names() for item in registry.implementations(name))
    same = []
    for record in baseline.records:
        if record.operator not in registry.names():
            continue
        operator = registry.operator(record.operator)
        folder, facts = operator.folder, record.environment.facts
        if folder is None or facts.get("git.dirty") != "no" or not facts.get("git.commit"):
            continue
        with contextlib.suppress(UsageError):  # an implementation that is gone has changed
            item = registry.implementation(record.operator, record.implementation)
            same_code = holds(
                record.source_sha256, record.code_sha256, source_sha256(item.source), code=partial(program_sha256, item)
            )
            same_machine = (
                environment_of(operator, BenchOptions(device=device, plan=plan)).fingerprint
                == record.environment.fingerprint
            )
            if same_machine and same_code and _same_since(facts, folder, sources):
                same.append(key_of(record))
    return tuple(same)


def histories(store: Store, baseline: Baseline) -> dict[SeriesKey, list[float]]:
    """The medians of the baseline's cases in a store, oldest first, each on its record's machine; the newest of
    them.
    """
    medians: dict[SeriesKey, list[float]] = {}
    for key, record in baseline.by_key().items():
        points = store.series(
            key.operator,
            key.implementation,
            key.workload,
            key.dtype,
            fingerprint=record.environment.fingerprint,
            limit=LOOKED_BACK,
            timed=True,
        )
        medians[key] = [
            point.median_s
            for point in points
            if point.median_s is not None and point.verdict == Pass.__name__ and not point.suspect
        ]
    return medians


def _runnable_revision(registry: Registry, record: Record, scratch: Path) -> str:
    facts = record.environment.facts
    commit = facts.get("git.commit", "")
    if not commit or facts.get("git.dirty") != "no" or record.operator not in registry.names():
        return ""
    folder = registry.operator(record.operator).folder
    try:
        there = folder is not None and (folder_at(folder, commit, scratch) / "op.py").is_file()
    except UsageError:  # a shallow clone, another repository: the recorded samples serve
        return ""
    return commit if there else ""


def _beside_revision(
    registry: Registry, key: SeriesKey, commit: str, host: Host, plan: Plan, allowed: float, device: str
) -> Sight:
    fresh = Side(text=f"{key.operator}:{key.implementation}", operator=key.operator, implementation=key.implementation)
    base = replace(fresh, text=f"{fresh.text}@{commit[:10]}", revision=commit)
    workload = workload_named(registry.operator(key.operator), key.workload)
    if workload is None:
        raise UsageError(
            f"{key.operator} has no workload {key.workload!r} any more; promote a new baseline if that is meant"
        )
    outcomes = compare_sides(
        registry,
        fresh,
        base,
        host,
        device=device,
        dtypes=(key.dtype,),
        workloads=(workload,),
        rule=Rule(),
        plan=plan,
        settled=settled_for(allowed),
    )
    outcome = next(outcomes)
    outcomes.close()
    return Sight(comparison=outcome.comparison, reason=outcome.reason, fresh=outcome.a, baseline=outcome.b)


def _beside_record(registry: Registry, key: SeriesKey, record: Record, host: Host, plan: Plan, device: str) -> Sight:
    options = BenchOptions(
        device=device, dtypes=(key.dtype,), implementations=(key.implementation,), workloads=(key.workload,), plan=plan
    )
    registry.implementation(key.operator, key.implementation)
    now = next(
        (
            record_now
            for record_now in bench(registry, [key.operator], options, host)
            if record_now.workload == key.workload or record_now.timing is None
        ),
        None,
    )
    if now is None:
        raise UsageError(
            f"{key} cannot be measured any more: its workload or dtype is gone; promote a new baseline if that is meant"
        )
    old = record.timing
    assert isinstance(old, Timing)  # a baseline holds nothing else
    if now.environment.fingerprint != record.environment.fingerprint:
        reason = (
            "this machine or its software is not the baseline's (another fingerprint), and its code cannot be "
            "run beside today's; promote a baseline here"
        )
        return Sight(comparison=None, reason=reason, fresh=now.verdict, baseline=record.verdict)
    if now.timing is None:
        return Sight(comparison=None, reason="it was not timed", fresh=now.verdict, baseline=record.verdict)
    comparison = compare_recorded(
        str(key),
        f"{key} as recorded",
        now.timing.samples_s,
        old.samples_s,
        band=RECORDED_BAND,
        workload=key.workload,
        dtype=key.dtype,
    )
    return Sight(comparison=comparison, fresh=now.verdict, baseline=record.verdict)


def _same_since(facts: Mapping[str, str], folder: Path, kernels: Container[Path]) -> bool:
    """Whether git sees no difference to what `facts` name in the operator's folder, and in opforge's own source where a
    repository keeps it, but in the sources of kernels: what is inside them is held against each one's records.
    """
    if _differs(facts["git.commit"], folder, kernels):
        return False
    root = tracked_root(PACKAGE)
    if not root:  # an installed package has its version in the fingerprint
        return True
    if root == tracked_root(folder):
        return not _differs(facts["git.commit"], PACKAGE, kernels)
    # the commit of the operator's repository says nothing of opforge's
    commit = facts.get("git.opforge", "")
    return bool(commit) and facts.get("git.opforge_dirty") == "no" and not _differs(commit, PACKAGE, kernels)


def _differs(commit: str, folder: Path, kernels: Container[Path]) -> bool:
    try:
        diff = subprocess.run(
            ["git", "-C", str(folder), "diff", "--name-only", "--relative", "-z", commit, "--", "."],
            capture_output=True,
            check=False,
        )
        new = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "--others", "--exclude-standard", "-z", "."],
            capture_output=True,
            check=False,
        )
    except OSError:
        return True
    # what Python keeps of a definition that it has read is no change to it
    changed = [
        name
        for listed in (diff, new)
        for name in os.fsdecode(listed.stdout).split("\0")
        if name and "__pycache__" not in Path(name).parts
    ]
    return (
        diff.returncode != 0 or new.returncode != 0 or any((folder / name).resolve() not in kernels for name in changed)
    )
