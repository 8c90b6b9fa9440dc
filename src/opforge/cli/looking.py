"""What a check looks at: the cases of a baseline, measured now, in turns with the baseline's own code where it can still be had."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import opforge
from opforge.backends.shared_code import source_sha256
from opforge.core.errors import UsageError
from opforge.core.record import Record
from opforge.core.timing import Timing
from opforge.core.verdict import Pass
from opforge.gate import Baseline, Key, Policy, Sight, key_of, settled_for
from opforge.registry import Registry
from opforge.runner import Host
from opforge.store import Store
from opforge.timing import Plan, Rule, compare_recorded
from opforge.workbench.bench import Options, bench, environment_of
from opforge.workbench.comparison import compare_sides
from opforge.workbench.sides import Side, folder_at

RECORDED_BAND = 0.05
LOOKED_BACK = 200
"""Records of a case that are read for its threshold; the newest hundred that passed count."""


def looker(registry: Registry, baseline: Baseline, host: Host, policy: Policy, plan: Plan, *, device: str, scratch: Path) -> Callable[[Sequence[Key]], Mapping[Key, Sight]]:
    """The `look` of a gate's check.

    Where the baseline's record names a commit, is of a clean tree and git still has it, that revision's implementation is
    run in turns with today's. Elsewhere today's is held against the recorded samples, on a machine with the same
    fingerprint only, with a dead band as wide as a machine drifts.
    """
    records = baseline.by_key()

    def look(keys: Sequence[Key]) -> dict[Key, Sight]:
        found: dict[Key, Sight] = {}
        for key in keys:
            record = records[key]
            revision = _runnable_revision(registry, record, scratch)
            allowed = baseline.thresholds.get(str(key), policy.allowed)
            try:
                if revision:
                    found[key] = _beside_revision(registry, key, revision, host, plan, allowed, device)
                else:
                    found[key] = _beside_record(registry, key, record, host, plan, device)
            except UsageError as error:
                found[key] = Sight(comparison=None, reason=str(error), baseline=record.verdict)
        return found

    return look


def unchanged(registry: Registry, baseline: Baseline, device: str, plan: Plan) -> tuple[Key, ...]:
    """The cases whose implementation, operator and opforge itself are byte for byte what the baseline measured, on a machine
    with its fingerprint. Where that cannot be told, a case is not among them."""
    found = []
    for record in baseline.records:
        if record.operator not in registry.names():
            continue
        operator = registry.operator(record.operator)
        folder, facts = operator.folder, record.environment.facts
        if folder is None or facts.get("git.dirty") != "no" or not facts.get("git.commit"):
            continue
        with contextlib.suppress(UsageError):  # an implementation that is gone has changed
            source = registry.implementation(record.operator, record.implementation).source
            same_machine = environment_of(operator, Options(device=device, plan=plan)).fingerprint == record.environment.fingerprint
            if same_machine and source_sha256(source) == record.source_sha256 and _same_since(facts["git.commit"], folder):
                found.append(key_of(record))
    return tuple(found)


def histories(store: Store, baseline: Baseline) -> dict[Key, list[float]]:
    """The medians of the baseline's cases in a store, oldest first, each on its record's machine; the newest of them."""
    found: dict[Key, list[float]] = {}
    for key, record in baseline.by_key().items():
        points = store.series(key.operator, key.implementation, key.workload, key.dtype, fingerprint=record.environment.fingerprint, limit=LOOKED_BACK, timed=True)
        found[key] = [point.median_s for point in points if point.median_s is not None and point.verdict == Pass.__name__ and not point.suspect]
    return found


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


def _beside_revision(registry: Registry, key: Key, commit: str, host: Host, plan: Plan, allowed: float, device: str) -> Sight:
    fresh = Side(text=f"{key.operator}:{key.implementation}", operator=key.operator, implementation=key.implementation)
    base = replace(fresh, text=f"{fresh.text}@{commit[:10]}", revision=commit)
    workload = next((workload for workload in registry.operator(key.operator).workloads if workload.name == key.workload), None)
    if workload is None:
        raise UsageError(f"{key.operator} has no workload {key.workload!r} any more; promote a new baseline if that is meant")
    outcomes = compare_sides(registry, fresh, base, host, device=device, dtypes=(key.dtype,), workloads=(workload,), rule=Rule(), plan=plan, settled=settled_for(allowed))
    outcome = next(outcomes)
    outcomes.close()
    return Sight(comparison=outcome.comparison, reason=outcome.reason, fresh=outcome.a, baseline=outcome.b)


def _beside_record(registry: Registry, key: Key, record: Record, host: Host, plan: Plan, device: str) -> Sight:
    options = Options(device=device, dtypes=(key.dtype,), implementations=(key.implementation,), workloads=(key.workload,), plan=plan)
    registry.implementation(key.operator, key.implementation)
    now = next((found for found in bench(registry, [key.operator], options, host) if found.workload == key.workload or found.timing is None), None)
    if now is None:
        raise UsageError(f"{key} cannot be measured any more: its workload or dtype is gone; promote a new baseline if that is meant")
    old = record.timing
    assert isinstance(old, Timing)  # a baseline holds nothing else
    if now.environment.fingerprint != record.environment.fingerprint:
        reason = "this machine or its software is not the baseline's (another fingerprint), and its code cannot be run beside today's; promote a baseline here"
        return Sight(comparison=None, reason=reason, fresh=now.verdict, baseline=record.verdict)
    if now.timing is None:
        return Sight(comparison=None, reason="it was not timed", fresh=now.verdict, baseline=record.verdict)
    comparison = compare_recorded(str(key), f"{key} as recorded", now.timing.samples_s, old.samples_s, band=RECORDED_BAND, workload=key.workload, dtype=key.dtype)
    return Sight(comparison=comparison, fresh=now.verdict, baseline=record.verdict)


def _same_since(commit: str, folder: Path) -> bool:
    """Whether git sees no difference to `commit` in the operator's folder, and in opforge's own source where it lies in a repository."""
    package = Path(opforge.__file__).resolve().parent
    if _differs(commit, folder):
        return False
    inside = subprocess.run(["git", "-C", str(package), "rev-parse", "--is-inside-work-tree"], capture_output=True, check=False).returncode == 0
    # an installed package has its version in the fingerprint
    return not inside or not _differs(commit, package)


def _differs(commit: str, folder: Path) -> bool:
    try:
        diff = subprocess.run(["git", "-C", str(folder), "diff", "--quiet", commit, "--", "."], capture_output=True, check=False)
        new = subprocess.run(["git", "-C", str(folder), "ls-files", "--others", "--exclude-standard", "."], capture_output=True, check=False)
    except OSError:
        return True
    return diff.returncode != 0 or bool(new.stdout.strip())
