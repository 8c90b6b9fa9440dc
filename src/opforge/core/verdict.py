"""Verdict: what verification found, as a value. Timing asks for a Pass and nothing else will do."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.core.operator import Case


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How one output of one case compares with the float64 oracle. Errors are over the elements where both are finite.

    worst_ratio    the largest |error| / bound; at most 1 for a pass
    quantiles_abs  p50, p90, p99 of the absolute error
    histogram      counts of |error| / bound in decades: below 1e-6, 1e-5, …, 1, 10, above
    kl             Kullback-Leibler divergence of the value histograms, output against reference, in nats
    """

    output: str
    elements: int
    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    l2_rel: float
    quantiles_abs: tuple[float, float, float]
    cosine: float
    sqnr_db: float
    max_ulp: float
    worst_ratio: float
    worst_index: tuple[int, ...]
    worst_expected: float
    worst_actual: float
    worst_bound: float
    histogram: tuple[int, ...]
    kl: float


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One case that was run, with what was found for each output."""

    case: Case
    dtype: str
    metrics: tuple[Metrics, ...]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Every case agreed with the oracle within its bound. `not_taken` lists cases the implementation's own statements refuse."""

    checked: tuple[Checked, ...]
    not_taken: tuple[tuple[str, str], ...]
    isolation: str

    @property
    def worst_ratio(self) -> float:
        """The largest |error| / bound over all cases."""
        return max((metrics.worst_ratio for checked in self.checked for metrics in checked.metrics), default=0.0)

    @property
    def max_abs(self) -> float:
        """The largest absolute error over all cases."""
        return max((metrics.max_abs for checked in self.checked for metrics in checked.metrics), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """An output is wrong. The worst element, with the bound it broke; `law` names the law when it was one that failed."""

    case: Case
    dtype: str
    output: str
    index: tuple[int, ...]
    expected: float
    actual: float
    tolerance: float
    wrong: int
    total: int
    law: str | None
    cause: str
    metrics: Metrics | None
    isolation: str


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The contract was broken: wrong shape or dtype, an input changed, memory written outside the output, an exception."""

    case: Case | None
    dtype: str
    reason: str
    isolation: str


@dataclass(frozen=True, kw_only=True)
class Crash:
    """The process that ran the implementation died. `status` is its exit code, negative for a signal."""

    case: Case | None
    dtype: str
    status: int
    stderr: str
    isolation: str


@dataclass(frozen=True, kw_only=True)
class Timeout:
    """No answer within the limit; the process was ended."""

    case: Case | None
    dtype: str
    limit_s: float
    isolation: str


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """Not run, and why: the implementation refuses every case, or this machine lacks something."""

    reason: str


Verdict = Pass | Mismatch | Broken | Crash | Timeout | Unsupported
FAILURES = (Mismatch, Broken, Crash, Timeout)
