"""Diagnosis: what holds a kernel back, with the evidence, and what can be tried against it."""

from __future__ import annotations

from dataclasses import dataclass

WRONG = "not right"
ROOF = "at the roof"
SPILLS = "register spills"
OCCUPANCY = "occupancy"
OVERHEAD = "call overhead"
CACHE = "cache misses"
INDEXING = "index arithmetic"
SCALAR = "scalar code"
MEMORY = "memory bandwidth"
ARITHMETIC = "arithmetic"
UNKNOWN = "no roof known"
CLASSES = (WRONG, ROOF, SPILLS, OCCUPANCY, OVERHEAD, CACHE, INDEXING, SCALAR, MEMORY, ARITHMETIC, UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One figure of a kernel.

    value       in words, with its unit; "not read" where nothing could say it: `source` says why
    criterion   what is wanted of it ("> 60 %"); "" where nothing is
    met         whether it is; None without a criterion or a value
    source      where it comes from: the record, the compiled code, counters
    """

    name: str
    value: str
    criterion: str = ""
    met: bool | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Direction:
    """Something to try: what, why it may help here, and the command that tries it."""

    what: str
    why: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What holds one implementation back on one workload.

    bottleneck   one of CLASSES
    because      the evidence that decided, in a sentence
    fraction     of the roofline bound that is reached; None without a time or a bound
    directions   two at least
    """

    operator: str
    implementation: str
    workload: str
    dtype: str
    device: str
    config: str
    bottleneck: str
    because: str
    fraction: float | None
    evidence: tuple[Evidence, ...]
    directions: tuple[Direction, ...]
