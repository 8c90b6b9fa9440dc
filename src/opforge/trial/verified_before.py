"""Verifications that stand: a bench does not repeat what this very code has passed, on these very cases, by this very
verifier.

A full verification leaves its version in the Pass: a hash of the operator's definition and of the code that verifies.
Where the store's newest believed evidence of an implementation's default config holds such a Pass of today's version, a
bench takes it: hidden cases and repeats are not run again, the workload itself and the audits are. `--again` verifies
afresh.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from opforge import verify
from opforge.backends.program_hash import is_of, program_sha256
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import COMPARED_AS_IS, Implementation
from opforge.core.definition.operator import Operator
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Inaccurate, Pass, Statement
from opforge.machine.versions import versions
from opforge.registry import Registry
from opforge.store import Installation, Store, compatible, fact_of
from opforge.trial.adequacy_gate import decisive

VerifiedKey = tuple[str, str, str]
"""Operator, implementation, dtype."""

VERSION, BEFORE = "cases_version", "verified_before"


@functools.lru_cache(maxsize=256)
def version_of(definition: Path) -> str:
    """Sixteen hex digits that change when an operator's definition, what it imports of opforge, or the verifier
    changes.
    """
    digest = sha256()
    for path in (*decisive(definition), *sorted(Path(verify.__file__).parent.rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def stated(verdict: Pass, operator: Operator) -> Pass:
    """The Pass of a full verification, with the version of what was asked; as it is for an operator without a file."""
    if operator.folder is None or verdict.states(VERSION) is not None:
        return verdict
    statement = Statement(name=VERSION, holds=True, detail=version_of(operator.folder / "op.py"))
    return replace(verdict, statements=(*verdict.statements, statement))


def proven(
    store: Store, registry: Registry, names: Iterable[str], model: str, *, any_version: bool = False
) -> dict[VerifiedKey, Pass]:
    """The Pass of each implementation and dtype that needs no second verification on a model of device, as records name
    it. With `any_version` also those of another definition or verifier than today's: dispatch believes them as well.

    Its `checked` are the operator's cases and hidden ones; it says which record it is from, and when that was found.
    """
    here = versions()
    passes: dict[VerifiedKey, Pass] = {}
    for name in names:
        operator = registry.operator(name)
        if operator.folder is None:
            continue
        wanted = version_of(operator.folder / "op.py")
        implementations = {item.name: item for item in registry.implementations(name)}
        sources = {item: source_sha256(implementation.source) for item, implementation in implementations.items()}
        beliefs = store.beliefs(
            name,
            Installation(
                device=model, sources=sources, versions=here, code_of=functools.partial(_program, implementations)
            ),
        )
        for evidence in reversed(beliefs.evidence):
            key = (name, evidence.implementation, evidence.dtype)
            if key in passes or evidence.config != implementations[evidence.implementation].default:
                continue
            record = store.get(evidence.record)
            verdict = record.verdict
            if isinstance(verdict, Pass) and any(
                item.name == VERSION and (any_version or item.detail == wanted) for item in verdict.statements
            ):
                passes[key] = _from(
                    record, verdict, {record.workload, *(workload.name for workload in operator.workloads)}
                )
    return passes


def inaccurate_before(store: Store, registry: Registry, name: str, model: str) -> dict[VerifiedKey, Inaccurate]:
    """The baselines of an operator that need not be found inaccurate again on a model of device: by the newest record
    of each in its dtype, where that says so of a case, is of the program that is there now and was found with
    a compatible toolchain. They are nobody's choice, and each workload judges them again.
    """
    here, workloads = versions(), {workload.name for workload in registry.operator(name).workloads}
    baselines = {
        item.name: item for item in registry.implementations(name) if item.inaccurate and item.backend in COMPARED_AS_IS
    }
    known: dict[VerifiedKey, Inaccurate] = {}
    for record in store.query(operator=name, device=model) if baselines else ():
        item = baselines.get(record.implementation)
        if item is None or record.config != item.default or record.trial:
            continue
        key = (name, record.implementation, record.dtype)
        known.pop(key, None)
        if (
            isinstance(record.verdict, Inaccurate)
            and record.verdict.found.case.name not in workloads
            and is_of(item, record.source_sha256, record.code_sha256)
            and not compatible(record.backend, fact_of(record).versions, here)
        ):
            known[key] = record.verdict
    return known


def _program(implementations: Mapping[str, Implementation], name: str) -> str:
    return program_sha256(implementations[name])


def _from(record: Record, verdict: Pass, workloads: set[str]) -> Pass:
    """The Pass without what the record's workload added, with its origin."""
    by_name: Mapping[str, Statement] = {item.name: item for item in verdict.statements}
    origin = Statement(
        name=BEFORE,
        holds=True,
        detail=f"record {record.id[:8]} of {record.created_at[:10]}, the same code and the same cases",
    )
    statements = {**by_name, BEFORE: by_name.get(BEFORE, origin)}
    return replace(
        verdict,
        checked=tuple(item for item in verdict.checked if item.case.name not in workloads),
        statements=tuple(statements.values()),
    )
