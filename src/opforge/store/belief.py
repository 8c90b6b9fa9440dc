"""The one place that decides which evidence is believed. Dispatch, tuning, tables, the gate and reports ask it.

Evidence is a verdict, and a time that was taken with it. It is believed where all of this holds:

1. It speaks of what is there now: of the same source, of the same compiled code, or `opforge records adopt` found both
   to be one.
2. It was found on this model of device, with a toolchain that is compatible with the one here.
3. The newest verdict stands. A failure is of a config: nothing of that config is believed until the same workload
   passes again, or the operator's cases, where it failed those (each Pass is of the cases too, but for the points of a
   search). A failure on the operator's cases takes every older Pass of the implementation with it.
4. A suspect time is nobody's; nor is that of a point of a search, which was verified on a selection of cases and not
   audited.
5. A time that is not steady ranks by the far end of its interval, and stands only where there is no steady one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import AxisValue
from opforge.core.evidence.record import Adoption, Record
from opforge.core.evidence.timing import long_launch_s
from opforge.core.evidence.timing_terms import terms_or_then
from opforge.store.evidence_facts import PASSED, Adopted, Fact

TOOLCHAIN: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "compile": ("torch",),
    "triton": ("triton",),
    "cuda": ("nvcc",),
    "tilelang": ("tilelang",),
    "cpp": ("g++",),
    "library": ("torch", "triton", "liger-kernel"),
}
"""What makes the code of each backend, by the names of `machine.versions`."""

COUNTED = {"g++": 1}
"""How many numbers of a version must be equal: the first two (Triton 3.6, nvcc 13.0), of g++ the first alone."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """What evidence is held against.

    device     the model, as records name it ("nvidia-h200")
    sources    implementation → hash of its source as it is now (backends.shared_code.source_sha256)
    versions   of the toolchain that is here, by name (machine.versions)
    code_of    implementation → hash of what its source says to the compiler (backends.program_hash.program_sha256);
               asked where a record is of another source and says its code. By default nothing is known of it
    """

    device: str
    sources: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    code_of: Callable[[str], str] = lambda implementation: ""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A Pass that is believed, and the time of it.

    median_s   seconds; None where it was not timed, or its time is nobody's
    ranked_s   what it is compared by: the median, of a time that is not steady the upper end of its interval
    cache      "warm" or "cold": only times with the same are compared; "" without a time
    terms      what is in the time beside the computation (core.evidence.timing_terms): only times on the same are
               compared; "" without a time
    launch_s   seconds of the host by which calls in a row are bound whatever the device takes; 0 where they are few
               (core.evidence.timing.LONG_LAUNCH_S)
    by         "source", "code" or "adopted": what shows that it speaks of what is there now
    """

    record: str
    created_at: str
    implementation: str
    backend: str
    workload: str
    dtype: str
    config: Config
    axes: Mapping[str, AxisValue]
    scalars: Mapping[str, ScalarValue]
    median_s: float | None
    ranked_s: float | None
    steady: bool
    cache: str
    by: str
    layout: str = "contiguous"
    terms: str = ""
    launch_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """What is believed of an operator on a device, and what keeps the rest from it.

    evidence   newest last; of each implementation, dtype, config, workload, call, state of the caches and terms one
               alone
    refused    (implementation, dtype, config) whose newest verdict is a failure → why
    doubts     (implementation, dtype) of which nothing is believed, though there are records → why, in words
    """

    evidence: tuple[Evidence, ...]
    refused: Mapping[tuple[str, str, Config], str]
    doubts: Mapping[tuple[str, str], str]

    def passes(self, implementation: str, dtype: str) -> bool:
        """Whether a Pass of it is believed, of whatever config."""
        return (implementation, dtype) in self._proven

    @functools.cached_property
    def _proven(self) -> frozenset[tuple[str, str]]:
        return frozenset((item.implementation, item.dtype) for item in self.evidence)

    def timed(self) -> tuple[Evidence, ...]:
        """The evidence with a time."""
        return tuple(item for item in self.evidence if item.median_s is not None)


def holds(
    source_sha256: str,
    code_sha256: str,
    now: str,
    *,
    code: Callable[[], str] = str,
    adopted: Collection[str] = (),
    codes: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """What shows that evidence of a source and code speaks of the source `now`: "source", "code" or "adopted"; "" where
    nothing does.

    now       the source that is there now
    code      the hash of its code, asked for where the sources differ and the evidence says its code
    adopted   the sources that the record was adopted for
    codes     what is recorded of sources (`codes_said`): one that a record was adopted for may have been edited since,
              and say the same to the compiler as the one that is there now
    """
    if source_sha256 == now:
        return "source"
    if now in adopted:
        return "adopted"
    if code_sha256 and code_sha256 == code():
        return "code"
    return "adopted" if any(codes[source] == code() for source in adopted if source in codes) else ""


def codes_said(facts: Iterable[Fact | Record]) -> dict[str, str]:
    """What the code of each source is, as far as records say it; the last one counts."""
    return {fact.source_sha256: fact.code_sha256 for fact in facts if fact.code_sha256}


def adopted_sources(adoptions: Iterable[Adoption | Adopted]) -> dict[str, set[str]]:
    """The sources that records were adopted for, by the records' ids."""
    by_record: dict[str, set[str]] = {}
    for adoption in adoptions:
        by_record.setdefault(adoption.record, set()).add(adoption.source_sha256)
    return by_record


def alike(one: Record, other: Record, adopted: Mapping[str, Collection[str]]) -> bool:
    """Whether two records of an implementation speak of one source or code. `adopted`: as of `adopted_sources`."""
    if one.code_sha256 and one.code_sha256 == other.code_sha256:
        return True
    return any(
        holds(known.source_sha256, "", asked.source_sha256, adopted=adopted.get(known.id, ()))
        for known, asked in ((one, other), (other, one))
    )


def compatible(backend: str, there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """What differs between the toolchains for a backend, in words; "" where nothing does that is known of both.

    >>> here = {"triton": "3.6.1"}
    >>> compatible("triton", {"triton": "3.6.0"}, here), compatible("triton", {"triton": "3.5.0"}, here)
    ('', 'with triton 3.5.0, and here is 3.6.1')
    """
    for name in TOOLCHAIN.get(backend, ()):
        counted = COUNTED.get(name, 2)
        if name in there and name in here and there[name].split(".")[:counted] != here[name].split(".")[:counted]:
            return f"with {name} {there[name]}, and here is {here[name]}"
    return ""


def believed(facts: Iterable[Fact], here: Installation, adoptions: Iterable[Adoption | Adopted] = ()) -> Beliefs:
    """What is believed of one operator, by the rules at the head of this module. `facts` in any order."""
    adopted = adopted_sources(adoptions)
    # of facts of one moment the one that was given last is the newer: records arrive in the order in which they were
    # found
    newest = sorted(facts, key=lambda fact: fact.created_at)[::-1]
    # what a fact says of a source need not be made again
    said = codes_said(reversed(newest))

    def code_of(name: str) -> str:
        return said.get(here.sources[name]) or here.code_of(name)

    doubts: dict[tuple[str, str], str] = {}
    of_now: list[tuple[Fact, str]] = []
    for fact in newest:
        now = here.sources.get(fact.implementation)
        if (
            now is None
            or fact.device != here.device
            or not ((fact.verdict == PASSED and not fact.trial) or fact.refused)
        ):
            continue
        by = holds(
            fact.source_sha256,
            fact.code_sha256,
            now,
            code=functools.partial(code_of, fact.implementation),
            adopted=adopted.get(fact.id, ()),
            codes=said,
        )
        doubt = (
            compatible(fact.backend, fact.versions, here.versions)
            if by
            else "of another version of its source; see whether it is the same code with: opforge records adopt"
        )
        if doubt:
            doubts.setdefault((fact.implementation, fact.dtype), f"record {fact.id[:8]} is {doubt}")
        else:
            of_now.append((fact, by))
    refused, failed_cases = _failures(fact for fact, _ in of_now)
    kept: dict[tuple[Any, ...], Evidence] = {}
    for fact, by in of_now:
        if fact.verdict != PASSED:
            continue
        why = refused.get((fact.implementation, fact.dtype, fact.config), "")
        if not why and fact.created_at <= failed_cases.get((fact.implementation, fact.dtype), ("", ""))[0]:
            why = failed_cases[fact.implementation, fact.dtype][1]
        if why:
            doubts[fact.implementation, fact.dtype] = why
            continue
        evidence = _evidence(fact, by)
        place = (evidence.cache, evidence.terms, fact.workload, *_call_of(fact))
        known = kept.get(place)
        if known is None or (
            evidence.median_s is not None and (known.median_s is None or (evidence.steady and not known.steady))
        ):
            kept[place] = evidence
    with_time = {_without_terms(place) for place, evidence in kept.items() if evidence.median_s is not None}
    evidence_now = tuple(
        evidence
        for place, evidence in reversed(kept.items())
        if evidence.median_s is not None or _without_terms(place) not in with_time
    )
    for fact, _ in of_now:
        if fact.refused:
            doubts.setdefault(
                (fact.implementation, fact.dtype), refused.get((fact.implementation, fact.dtype, fact.config), "")
            )
    beliefs = Beliefs(evidence=evidence_now, refused=refused, doubts=doubts)
    return replace(beliefs, doubts={key: why for key, why in doubts.items() if why and not beliefs.passes(*key)})


def _call_of(fact: Fact) -> tuple[Any, ...]:
    return fact.implementation, fact.dtype, fact.config, _frozen(fact.axes), _frozen(fact.scalars), fact.layout


def _failures(
    newest_first: Iterable[Fact],
) -> tuple[dict[tuple[str, str, Config], str], dict[tuple[str, str], tuple[str, str]]]:
    """The failures that stand, by config; and of those on the operator's cases the newest of each implementation and
    dtype, with its time.
    """
    seen: set[tuple[Any, ...]] = set()
    refused: dict[tuple[str, str, Config], str] = {}
    failed_cases: dict[tuple[str, str], tuple[str, str]] = {}
    for fact in newest_first:
        place = (fact.implementation, fact.dtype, fact.config, fact.workload)
        why = (
            f"record {fact.id[:8]} of {fact.created_at[:10]} is a "
            f"{fact.verdict}{f' on {fact.workload}' if fact.workload else ''}"
        )
        if fact.refused and place not in seen:
            refused.setdefault(place[:3], why)
        if fact.refused and not fact.workload:
            failed_cases.setdefault(place[:2], (fact.created_at, why))
        seen.add(place)
        if not fact.refused:
            seen.add((*place[:3], ""))
    return refused, failed_cases


def _evidence(fact: Fact, by: str) -> Evidence:
    median_s = None if fact.suspect else fact.median_s
    ranked_s = median_s if median_s is None or fact.steady else max(median_s, fact.high_s or median_s)
    return Evidence(
        record=fact.id,
        created_at=fact.created_at,
        implementation=fact.implementation,
        backend=fact.backend,
        workload=fact.workload,
        dtype=fact.dtype,
        config=fact.config,
        axes=fact.axes,
        scalars=fact.scalars,
        median_s=median_s,
        ranked_s=ranked_s,
        steady=fact.steady,
        cache=fact.cache if median_s is not None else "",
        by=by,
        layout=fact.layout,
        terms=terms_or_then(fact.terms, fact.backend) if median_s is not None else "",
        launch_s=long_launch_s(fact.launch_s) if median_s is not None else 0.0,
    )


def _without_terms(place: tuple[Any, ...]) -> tuple[Any, ...]:
    return place[2:]


def _frozen(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(values.items()))
