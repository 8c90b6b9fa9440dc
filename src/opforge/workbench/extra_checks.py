"""What a Pass may be asked on request: compute-sanitizer, ten thousand calls, tensors of more than 2^31 elements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Pass, Verdict
from opforge.registry import Registry
from opforge.runner import Host
from opforge.verify import CaseCache
from opforge.verify.extra.sanitize import sanitized
from opforge.verify.extra.soak import soaked
from opforge.verify.judging.huge import Huge


def run_extra_checks(
    registry: Registry,
    records: Iterable[Record],
    host: Host,
    device: str,
    *,
    sanitize: str = "",
    soak: bool = False,
    huge: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Record]:
    """The records of a verification; those with a Pass after they were asked further, one after the other.

    sanitize   a tool of compute-sanitizer ("memcheck", "racecheck", …), "" for none
    soak       whether to call each ten thousand times
    huge       whether to verify on more than 2^31 elements; the memory is shared by the implementations of an operator
               and dtype
    What ends a verification, or keeps one from being asked further, is raised when all records have been given, that
    one as it was.
    """
    # all of them first: workers of the small cases hold memory too
    known: list[Record] = []
    ended: Exception | None = None
    try:
        for record in records:
            known.append(record)
    except Exception as error:  # noqa: BLE001 - raised below
        ended = error
    for (operator, dtype), group in groupby(known, key=lambda record: (record.operator, record.dtype)):
        bench = CaseCache(registry=registry, operator=registry.operator(operator), host=host, device=device)
        with contextlib.closing(bench), contextlib.closing(Huge(bench=bench, dtype=dtype)) as large:
            for record in group:
                implementation = registry.implementation(operator, record.implementation)
                verdict: Verdict = record.verdict
                try:
                    if sanitize and isinstance(verdict, Pass):
                        progress(f"{operator} {record.implementation} {dtype} under {sanitize}")
                        verdict = sanitized(bench, implementation, dtype, sanitize, verdict)
                    if soak and isinstance(verdict, Pass):
                        progress(f"{operator} {record.implementation} {dtype} ten thousand times")
                        verdict = soaked(bench, implementation, dtype, verdict, record.config)
                    if huge and isinstance(verdict, Pass):
                        progress(f"{operator} {record.implementation} {dtype} beyond 2^31")
                        verdict = large.judged(implementation, verdict)
                except Exception as error:  # noqa: BLE001 - raised below
                    ended = ended or error
                yield replace(record, verdict=verdict)
    if ended is not None:
        raise ended
