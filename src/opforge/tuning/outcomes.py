"""The nouns of tuning: what is asked, what one point came to, and what all of them came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.implementation import Config
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Crash, Timeout, Verdict
from opforge.timing import Plan
from opforge.tuning.strategies import Objectives

TIMED, SLOWER, SAME_CODE, FAILED = "timed", "slower", "same code", "failed"


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What to tune.

    device            torch device type: "cpu", "cuda", …
    dtypes            which of the operator's dtypes; empty means all
    backends          which backends; empty means all
    implementations   which implementations by name; empty means all
    workloads         which workloads by name; empty means those whose scale fits the device
    trials            points to try at most for each implementation × workload × dtype; 0 means every valid point
    seed              of the order in which points are tried
    weights           of "time", "memory", "energy" and "error" in what a point costs; empty means time alone
    settings          values that tunables must have, each a choice beside the others: points with none of them are not
                      tried, the default apart; empty means every point
    target            a described device whose limits bound the spaces too; None: this device's alone
    strategy          how points are chosen (tuning.strategies.NAMES)
    fresh             begin anew: what an interrupted run of the same search had measured is measured again
    priors            files of other tuners' results that searches begin with (tuning.exchange)
    requalify         try the former winners, the runners-up on record and the defaults alone
    into_package      choices are written beside the kernel also where that is an installed package
    plan              how long each point is measured
    jobs              compilers at once; 0: half of the processors where kernels run on them, all but two beside a GPU
    limit_s           seconds for all of it, shared among what is to be tuned; None: no limit
    hang_s            seconds after which a point that does not answer is ended
    """

    device: str = "cpu"
    dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    trials: int = 64
    seed: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    settings: tuple[Config, ...] = ()
    target: DeviceSpec | None = None
    strategy: str = "model"
    fresh: bool = False
    priors: tuple[Path, ...] = ()
    requalify: bool = False
    into_package: bool = False
    plan: Plan = field(default_factory=lambda: Plan(samples=10, budget_s=0.2))
    jobs: int = 0
    limit_s: float | None = None
    hang_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one point came to.

    outcome   "timed"; "slower": right on the workload and too slow to be looked at any further; "same code": the
              compiler made what it had made of an earlier point; "failed"
    reason    how much slower, which point has the same code, or how it failed; "" for a timed one
    ratio     its time over that of the best point until then, both measured interleaved; None without a time, 1 for the
              first
    stack_bytes   what a thread of its GPU kernels keeps outside of registers: it spills, or indexes an array; None: not
                  known
    number    of `total` that may be tried
    elapsed_s     since the tuning began
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
    stack_bytes: int | None
    number: int
    total: int
    elapsed_s: float


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What the trials for one workload and dtype came to.

    record       of the fastest implementation and config, verified once more with all cases, timed interleaved with the
                 others; None: nothing passed
    over_default its time over that of its own default, interleaved; None where the default did not pass
    front        (implementation, config, costs) of the timed points that no other beats in every objective
    others       (implementation, its best config, time of it over the time of the fastest)
    resumed      how many of the points were measured by an earlier run of the same search, which was interrupted
    refused      how many points of the spaces the limits refused
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
    slower: int
    same_code: int
    failed: int
    resumed: int
    refused: int
    kept: bool
    why: str
    front: tuple[tuple[str, Config, Objectives], ...]


def explained(verdict: Verdict) -> str:
    """Why a point has no time, in a line."""
    if isinstance(verdict, Timeout):
        return f"{type(verdict).__name__}: no answer within {verdict.limit_s:g} s"
    said = next((text for name in ("reason", "cause", "stderr") if (text := getattr(verdict, name, ""))), "")
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    if not lines:
        return type(verdict).__name__
    # a compiler says what is wrong somewhere in the middle, a crash at the end
    told = next((line for line in lines if "error" in line.lower()), lines[-1 if isinstance(verdict, Crash) else 0])
    return f"{type(verdict).__name__}: {told}"
