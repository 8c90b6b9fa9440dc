"""Verdict: what verification found, as a value. Timing asks for a Pass and nothing else will do."""

from __future__ import annotations

from dataclasses import dataclass, field

from opforge.core.definition.implementation import COMPARED_AS_IS
from opforge.core.definition.operator import Case
from opforge.core.language.added_fields import ADDED


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How one output of one case compares with the float64 oracle. Errors are over the elements where both are finite.

    worst_ratio    the largest |error| / bound; at most 1 for a pass
    quantiles_abs  p50, p90, p99 of the absolute error
    histogram      counts of |error| / bound in decades: below 1e-6, 1e-5, …, 1, 10, above
    kl             Kullback-Leibler divergence of the value histograms, output against reference, in nats
    clip_ratio     share of the elements at or beyond the dtype's largest value where the reference is finite; None in
                   records from before it was measured
    noise          root mean square of |error| over what is typical of float32 arithmetic, at most 1 for a pass; None
                   where the operator does not say what is typical, and in records from before it was measured
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
    clip_ratio: float | None = None
    noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Window:
    """The neighbourhood of one element of an output: rows of its last two axes (one row for a vector), actual beside
    expected.

    corner  index of the first element shown, in the output's own axes
    wrong   which of them break the bound
    """

    output: str
    corner: tuple[int, ...]
    expected: tuple[tuple[float, ...], ...]
    actual: tuple[tuple[float, ...], ...]
    wrong: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Something verification found out that is neither right nor wrong: "deterministic", "batch_invariant",
    "hidden_cases".
    `holds` is None when it was not asked; `detail` says what was done, or why nothing was."""

    name: str
    holds: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One case that was run, with what was found for each output."""

    case: Case
    dtype: str
    metrics: tuple[Metrics, ...]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Every case agreed with the oracle within its bound. `not_taken` lists cases the implementation's own statements
    refuse;
    `worst` shows the element closest to its bound among its neighbours."""

    checked: tuple[Checked, ...]
    not_taken: tuple[tuple[str, str], ...]
    isolation: str
    statements: tuple[Statement, ...] = ()
    worst: Window | None = None

    @property
    def worst_ratio(self) -> float:
        """The largest |error| / bound over all cases."""
        return max((metrics.worst_ratio for checked in self.checked for metrics in checked.metrics), default=0.0)

    def states(self, name: str) -> bool | None:
        """What a statement says: True, False, or None when it was not asked."""
        return next((statement.holds for statement in self.statements if statement.name == name), None)

    @property
    def max_abs(self) -> float:
        """The largest absolute error over all cases."""
        return max((metrics.max_abs for checked in self.checked for metrics in checked.metrics), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """An output is wrong. The worst element, with the bound it broke; `law` names the law when it was one that failed.

    shrunk_from  the case that failed first, when `case` is a smaller one that fails in the same way
    after        the case that the same launch had run before, on the same memory, when it was right for that one
    window       neighbours of the worst element, and `first_metrics` its metrics, in the case that failed first: a
                 pattern shows there, where the shrunk case may have a single element
    """

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
    shrunk_from: Case | None = None
    after: Case | None = None
    window: Window | None = None
    first_metrics: Metrics | None = None


@dataclass(frozen=True, kw_only=True)
class Inaccurate:
    """A baseline, not accurate: what a user calls in PyTorch or another library breaks the operator's bound, and its
    file says why.

    It is timed all the same, because users do call it, and each place that shows its time says so. It is no Pass:
    nobody's choice, and nothing but a file of COMPARED_AS_IS backends can have it.

    reason   what the file says (INACCURATE)
    found    the mismatch that verification met
    """

    reason: str
    found: Mismatch


@dataclass(frozen=True, kw_only=True)
class Broken:
    """The contract was broken: wrong shape or dtype, an input changed, memory written outside the output, an
    exception.
    """

    case: Case | None
    dtype: str
    reason: str
    isolation: str
    shrunk_from: Case | None = None


@dataclass(frozen=True, kw_only=True)
class Crash:
    """The process that ran the implementation died. `status` is its exit code, negative for a signal."""

    case: Case | None
    dtype: str
    status: int
    stderr: str
    isolation: str
    shrunk_from: Case | None = None


@dataclass(frozen=True, kw_only=True)
class Timeout:
    """No answer within the limit; the process was ended. `compiling`: while a compiler ran inside of the call, the
    worker said; False where the kernel's own code did, and in records from before it was told apart.
    """

    case: Case | None
    dtype: str
    limit_s: float
    isolation: str
    compiling: bool = field(default=False, metadata=ADDED)


@dataclass(frozen=True, kw_only=True)
class LibraryFallback:
    """Right where it was checked, and not what it claims to be: it has a library compute instead of its backend. It is
    no failure of correctness and never gets a time. `evidence` lists the library's operations, with how often each was
    called.
    """

    case: Case | None
    dtype: str
    reason: str
    evidence: tuple[str, ...]
    isolation: str


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """Not run, and why: the implementation refuses every case, or this machine lacks something."""

    reason: str


Verdict = Pass | Inaccurate | Mismatch | Broken | Crash | Timeout | LibraryFallback | Unsupported
Proof = Pass | Inaccurate
"""What a time may rest on: the Pass of a candidate, or of a baseline that it was looked at, and how it is wrong."""


def may_be_timed(verdict: Verdict, backend: str) -> bool:
    """Whether a time may stand beside this verdict: a Pass, or a baseline that is known to be inaccurate."""
    return isinstance(verdict, Pass) or (isinstance(verdict, Inaccurate) and backend in COMPARED_AS_IS)


FAILURES = (Mismatch, Broken, Crash, Timeout)
REFUSED = (*FAILURES, LibraryFallback)
"""Verdicts that make a command end with exit code 1."""
