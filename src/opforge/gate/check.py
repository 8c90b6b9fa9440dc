"""The gate: what a check concludes from comparisons with a baseline. Nothing here measures; `look` is asked to.

A case is suspected when it is slower than its baseline beyond doubt (after Holm's correction over all cases) and by
more than is allowed, or less accurate. Suspected and unsure cases are looked at a second time, independently; only what
both looks say is a regression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from opforge.core.evidence.comparison import SLOWER, Comparison
from opforge.core.evidence.verdict import REFUSED, Pass, Unsupported, Verdict
from opforge.core.language import units
from opforge.gate.history import SeriesKey
from opforge.timing import holm

FINE, REGRESSION, UNSURE_STATE, SKIPPED = "fine", "regression", "unsure", "unchanged"
EXIT_CODES = {FINE: 0, REGRESSION: 1, UNSURE_STATE: 4}
LEAST_ELEMENTS = 1000
CLIPPED = 1e-3
"""Growth of the clipped share below which it is chance: inputs are drawn anew."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a check tolerates.

    allowed    ratio of times up to which a case is fine, unless the baseline has a threshold of its own
    accuracy   factor by which the 99th percentile of the absolute error, and the share of clipped elements, may grow
    alpha      of the family of all cases, after Holm's correction
    """

    allowed: float = 1.05
    accuracy: float = 1.25
    alpha: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What one look at a case saw: the comparison (fresh against baseline) or why there is none, and both verdicts."""

    comparison: Comparison | None
    reason: str = ""
    fresh: Verdict | None = None
    baseline: Verdict | None = None


Look = Callable[[Sequence[SeriesKey]], Mapping[SeriesKey, Sight]]


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The conclusion on one case. `words` say why, with the evidence; `looks` is how often it was measured."""

    key: SeriesKey
    state: str
    words: str
    allowed: float
    comparison: Comparison | None = None
    looks: int = 1


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings of one check. `exit_code`: 0 fine, 1 a regression, 4 unsure."""

    baseline: str
    findings: tuple[CaseResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 where anything regressed, else 4 where anything is unsure, else 0."""
        states = {finding.state for finding in self.findings}
        return EXIT_CODES[REGRESSION if REGRESSION in states else UNSURE_STATE if UNSURE_STATE in states else FINE]

    def count(self, state: str) -> int:
        """How many findings are in a state."""
        return sum(finding.state == state for finding in self.findings)


def check(
    name: str,
    keys: Sequence[SeriesKey],
    look: Look,
    policy: Policy,
    thresholds: Mapping[str, float] | None = None,
    unchanged: Sequence[SeriesKey] = (),
) -> Report:
    """The Report on `keys` against the baseline called `name`; `unchanged` ones are listed and not looked at."""
    allowed = {key: (thresholds or {}).get(str(key), policy.allowed) for key in keys}
    first = _conclude(keys, look(keys) if keys else {}, allowed, policy, looks=1)
    again = [key for key in keys if first[key].state != FINE]
    second = _conclude(again, look(again), allowed, policy, looks=2) if again else {}
    findings = [_settle(first[key], second.get(key)) for key in keys]
    findings += [
        CaseResult(
            key=key,
            state=SKIPPED,
            words="its source is what the baseline measured; not measured again",
            allowed=policy.allowed,
            looks=0,
        )
        for key in unchanged
    ]
    return Report(baseline=name, findings=tuple(findings))


def settled_for(allowed: float) -> Callable[[Comparison], bool]:
    """When a comparison needs no more pairs: it is surely within what is allowed, or surely slower and beyond it."""
    return lambda comparison: _time_state(comparison, allowed) != UNSURE_STATE


def _time_state(comparison: Comparison, allowed: float) -> str:
    if comparison.high <= allowed:
        return FINE
    return REGRESSION if comparison.outcome == SLOWER and comparison.ratio > allowed else UNSURE_STATE


def _conclude(
    keys: Sequence[SeriesKey],
    sights: Mapping[SeriesKey, Sight],
    allowed: Mapping[SeriesKey, float],
    policy: Policy,
    looks: int,
) -> dict[SeriesKey, CaseResult]:
    timed = [key for key in keys if sights[key].comparison is not None]
    adjusted = dict(
        zip(
            timed,
            holm([comparison.p for key in timed if (comparison := sights[key].comparison) is not None]),
            strict=True,
        )
    )
    return {key: _finding(key, sights[key], allowed[key], adjusted.get(key, 1.0), policy, looks) for key in keys}


def _finding(key: SeriesKey, sight: Sight, allowed: float, p: float, policy: Policy, looks: int) -> CaseResult:
    comparison = sight.comparison
    if isinstance(sight.fresh, REFUSED):
        return CaseResult(
            key=key,
            state=REGRESSION,
            words=f"it passed in the baseline and does not now: {type(sight.fresh).__name__}. {sight.reason}".strip(),
            allowed=allowed,
            looks=looks,
        )
    worse = less_accurate(sight.fresh, sight.baseline, policy.accuracy)
    if worse is not None:
        return CaseResult(key=key, state=REGRESSION, words=worse, allowed=allowed, comparison=comparison, looks=looks)
    if comparison is None:
        what = "is not supported here" if isinstance(sight.fresh, Unsupported) else "was not compared"
        return CaseResult(key=key, state=UNSURE_STATE, words=f"{what}: {sight.reason}", allowed=allowed, looks=looks)
    state = _time_state(comparison, allowed)
    told = (
        f"{comparison.ratio:.3f} of the baseline's time ({comparison.low:.3f} to {comparison.high:.3f}, "
        f"{allowed:.3f} allowed)"
    )
    if state == REGRESSION and not p <= policy.alpha:
        return CaseResult(
            key=key,
            state=UNSURE_STATE,
            words=f"{told}; not beyond doubt among all cases (Holm p = {p:.2g})",
            allowed=allowed,
            comparison=comparison,
            looks=looks,
        )
    if state == UNSURE_STATE:
        told += "; the interval reaches beyond what is allowed: run it on a quieter machine or with more --budget"
    return CaseResult(key=key, state=state, words=told, allowed=allowed, comparison=comparison, looks=looks)


def _settle(first: CaseResult, second: CaseResult | None) -> CaseResult:
    """What two independent looks say together."""
    if second is None:
        return first
    if second.state == first.state:
        return replace(second, words=f"{second.words}; seen twice" if second.state == REGRESSION else second.words)
    if second.state == FINE:
        return replace(second, words=f"{second.words}; a first look was {first.state}, a second did not confirm it")
    return replace(second, state=UNSURE_STATE, words=f"{second.words}; a first look said {first.state}: {first.words}")


def less_accurate(fresh: Verdict | None, baseline: Verdict | None, factor: float) -> str | None:
    """Why `fresh` is less accurate than `baseline`, or None. Of a case and output of 1000 elements or more (fewer have
    no 99th percentile to speak of): the 99th percentile of the absolute error grew by more than `factor`, or the share
    of elements
    that the dtype clips by more than `factor` and one in a thousand."""
    if not isinstance(fresh, Pass) or not isinstance(baseline, Pass):
        return None
    before, now = errors(baseline), errors(fresh)
    worst = max(
        ((now[name] / before[name], name) for name in before.keys() & now.keys() if before[name] > 0),
        default=(0.0, ("", "")),
    )
    fresh_errors = [name for name in before.keys() & now.keys() if before[name] == 0 and now[name] > 0]
    if fresh_errors:
        return (
            f"less accurate: p99 error of {fresh_errors[0][1]} in {fresh_errors[0][0]} is "
            f"{units.number(now[fresh_errors[0]])}, it was exact"
        )
    if not worst[0] <= factor:
        return (
            f"less accurate: p99 error of {worst[1][1]} in {worst[1][0]} is {units.number(now[worst[1]])}, "
            f"{worst[0]:.2f} times what it was"
        )
    clipped, clipped_now = clips(baseline), clips(fresh)
    for name in sorted(clipped.keys() & clipped_now.keys()):
        if not clipped_now[name] <= max(clipped[name] * factor, clipped[name] + CLIPPED):
            return (
                f"less accurate: {units.percent(clipped_now[name])} of {name[1]} in {name[0]} are clipped at the "
                f"largest value of their dtype, {units.percent(clipped[name])} were"
            )
    return None


def errors(verdict: Pass) -> dict[tuple[str, str], float]:
    """(case, output) → 99th percentile of the absolute error; the last check of a case of that name counts."""
    return {
        (checked.case.name, metrics.output): metrics.quantiles_abs[2]
        for checked in verdict.checked
        for metrics in checked.metrics
        if metrics.elements >= LEAST_ELEMENTS
    }


def clips(verdict: Pass) -> dict[tuple[str, str], float]:
    """(case, output) → share of elements that its dtype clips, where that was measured."""
    return {
        (checked.case.name, metrics.output): metrics.clip_ratio
        for checked in verdict.checked
        for metrics in checked.metrics
        if metrics.elements >= LEAST_ELEMENTS and metrics.clip_ratio is not None
    }
