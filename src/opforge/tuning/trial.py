"""The nouns of tuning: what is asked, what one point came to, and what all of them came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from opforge.core.implementation import Config
from opforge.core.record import Record
from opforge.timing import Plan

TIMED, SAME_CODE, FAILED = "timed", "same code", "failed"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to tune.

    device            torch device type: "cpu", "cuda", …
    dtypes            which of the operator's dtypes; empty means all
    backends          which backends; empty means all
    implementations   which implementations by name; empty means all
    workloads         which workloads by name; empty means those whose scale fits the device
    trials            points to try at most for each implementation × workload × dtype; 0 means every valid point
    seed              of the order in which points are tried
    plan              how long each point is measured
    """

    device: str = "cpu"
    dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    trials: int = 64
    seed: int = 0
    plan: Plan = field(default_factory=lambda: Plan(samples=10, budget_s=0.2))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one point came to.

    outcome   "timed"; "same code": the compiler made what it had made of an earlier point; "failed"
    reason    which point has the same code, or how it failed; "" for a timed one
    ratio     its time over that of the best point until then, both measured in turns; None without a time, 1 for the first
    number    of `total` that may be tried
    """

    operator: str
    implementation: str
    workload: str
    dtype: str
    config: Config
    outcome: str
    reason: str
    ratio: float | None
    record: Record
    number: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What the trials for one workload and dtype came to.

    record       of the fastest implementation and config, verified once more with all cases, timed in turns with the others; None: nothing passed
    over_default its time over that of its own default, in turns; None where the default did not pass
    others       (implementation, its best config, time of it over the time of the fastest)
    kept         whether it replaced what had been chosen before
    why          in a sentence
    """

    operator: str
    workload: str
    dtype: str
    record: Record | None
    over_default: float | None
    others: tuple[tuple[str, Config, float], ...]
    timed: int
    same_code: int
    failed: int
    kept: bool
    why: str
