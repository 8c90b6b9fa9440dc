"""Evidence that comes with the package: for each device model one file of facts, so that a fresh machine of that model
need not measure before it is quick.

A file is JSON: what many rows share (sources, versions, texts) stands once, each fact is a short row. Files are written
by `opforge records ship` and lie beside this module in shipped/. What they say is held against the sources and the
toolchain that are here, as one's own records are.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.core.evidence.record import from_json, to_json
from opforge.core.evidence.timing import long_launch_s
from opforge.store.evidence_facts import CONTIGUOUS, PASSED, Fact

FOLDER = Path(__file__).resolve().parent / "shipped"
VARIABLE = "OPFORGE_EVIDENCE"
"""Set to "here", one's own records count alone."""
FORMAT = 2
MOST_BYTES = 2_000_000
"""What all files together may take in the wheel."""
OWN = (
    "config",
    "axes",
    "scalars",
    "versions",
    "workload",
    "implementation",
    "dtype",
    "source_sha256",
    "code_sha256",
    "layout",
    "backend",
    "terms",
)
"""Fields whose values are kept once and named by their number."""


def wanted() -> bool:
    """Whether evidence that came with the package counts: OPFORGE_EVIDENCE=here asks for one's own alone."""
    return os.environ.get(VARIABLE, "").strip().lower() != "here"


def shipped(operator: str, device: str, folder: Path = FOLDER) -> list[Fact]:
    """The facts that came with the package, of an operator on a model of device; none where it brings none.

    Their ids begin with "shipped-", and they are older than any of one's own: see `earlier`.
    """
    content = _file(folder / f"{device}.json")
    return (
        []
        if content is None
        else [_fact(content, operator, device, row) for row in content["operators"].get(operator, ())]
    )


def is_shipped(identity: str) -> bool:
    """Whether the id is of a fact that came with the package."""
    return identity.startswith(MARK)


MARK = "shipped-"


def earlier(created_at: str) -> str:
    """A moment that is before any of one's own records, in the same order among its kind: whatever was found here is
    newer than what came along.

    >>> earlier("2026-11-22T07:24:19.084000+00:00")
    '0026-11-22T07:24:19.084000+00:00'
    """
    return f"0{created_at[1:]}"


def day_of(created_at: str) -> str:
    """The day of a fact, whether it was made `earlier` or not.

    >>> day_of("0026-11-22T07:24:19.084000+00:00"), day_of("2026-11-22T07:24:19.084000+00:00")
    ('2026-11-22', '2026-11-22')
    """
    return f"2{created_at[1:10]}"


def packed(facts: Iterable[Fact], device: str) -> str:
    """The file for a device: Passes alone, their newest first among equals. Times keep four digits, days are those of
    the records.
    """
    texts: dict[str, int] = {}

    def number(value: Any) -> int:
        return texts.setdefault(json.dumps(to_json(value), separators=(",", ":"), sort_keys=True), len(texts))

    operators: dict[str, list[list[Any]]] = {}
    for fact in sorted(
        facts,
        key=lambda fact: (fact.operator, fact.implementation, fact.dtype, fact.workload, fact.created_at, fact.id),
    ):
        assert fact.verdict == PASSED and fact.device == device
        seconds = [
            None if value is None else float(f"{value:.4g}") for value in (fact.median_s, fact.low_s, fact.high_s)
        ]
        shared = [number(getattr(fact, name)) for name in OWN]
        # a host's time to launch stands last, where it counts
        long_s = long_launch_s(fact.launch_s)
        launch = [float(f"{long_s:.4g}")] if long_s else []
        operators.setdefault(fact.operator, []).append(
            [fact.id[:12], fact.created_at[:19], *seconds, fact.cache, int(fact.steady), *shared, *launch]
        )
    rows = ",\n".join(
        f'"{name}":[\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in operator_rows) + "\n]"
        for name, operator_rows in sorted(operators.items())
    )
    return (
        f'{{"format":{FORMAT},"device":{json.dumps(device)},\n"texts":[\n'
        + ",\n".join(texts)
        + f'\n],\n"operators":{{\n{rows}\n}}}}\n'
    )


@functools.cache
def _file(path: Path) -> Mapping[str, Any] | None:
    """What a file says; None where there is none, or one of another opforge."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return {**content, "values": {}} if content.get("format") == FORMAT else None


def _fact(file: Mapping[str, Any], operator: str, device: str, row: Sequence[Any]) -> Fact:
    identity, created_at, median_s, low_s, high_s, cache, steady, *rest = row
    shared, launch = rest[: len(OWN)], rest[len(OWN) :]
    values = file["values"]
    for place in shared:
        if place not in values:
            values[place] = from_json(file["texts"][place])
    own = dict(zip(OWN, (values[place] for place in shared), strict=True))
    return Fact(
        id=f"{MARK}{identity}",
        created_at=earlier(f"{created_at}.000000+00:00"),
        operator=operator,
        device=device,
        verdict=PASSED,
        median_s=median_s,
        low_s=low_s,
        high_s=high_s,
        cache=cache,
        suspect=False,
        steady=bool(steady),
        trial=False,
        launch_s=launch[0] if launch else None,
        **{"layout": CONTIGUOUS, **own},
    )
