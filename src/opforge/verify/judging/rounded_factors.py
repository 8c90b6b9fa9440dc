"""Whether a product in float32 rounds its factors, at lengths where a float32 sum's own rounding would hide that.

What sums may do grows with their length, and what factors of 16 digits do only with its root: beyond 2^14 terms they
stay below the bound, and below what all elements together may be off. But errors of sums are the same whatever digits
the factors have, and those of rounded factors are gone where the factors have no more digits than are kept. So the same
case is asked twice, the second time with factors of 16 digits: products of these have 32, which float32 sums still
round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import Config, Implementation, Rejected
from opforge.core.definition.operator import Case, Operator
from opforge.core.evidence.verdict import Broken, Checked, LibraryFallback, Metrics, Mismatch
from opforge.runner import Worker
from opforge.runner.wire.messages import Release
from opforge.verify.cases.case_cache import CaseCache, PreparedCase, Undefined
from opforge.verify.extra.adequacy import whole_lengths
from opforge.verify.extra.reduced_precision import rounded
from opforge.verify.judging.run_case import judge, run_again, run_once
from opforge.verify.oracle.expectation import consult

TERMS = 1 << 14
"""With as many terms, or fewer, factors of 16 digits are beyond what all elements together may be off (1.25 times)."""
DIGITS = 16
LOUD, FALLS = 0.15, 2.0
"""Errors of all elements together, in parts of what is allowed, that are asked about; and how many times less they are
with factors of 16 digits, where factors were rounded. Sums one after another stand at 0.33 and fall by nothing; 256
elements say it within 6 %. Blocked sums stand at 0.03, and factors of 16 digits at 0.75."""
TELLING = 64
"""Fewer elements say too little."""


def long_products(operator: Operator, dtype: str) -> Iterator[Case]:
    """The cases that are asked: products in float32 whose largest workload has more terms than TERMS."""
    if dtype != "float32" or operator.unit != "matrix":
        return
    for case in whole_lengths(operator, dtype):
        kept = case.name.rpartition(", ")[2].removesuffix(" whole")
        terms = case.axes.get(kept)
        declared = operator.compute_dtype_of(dtype, case.scalars)
        if isinstance(terms, int) and terms > TERMS and declared == "float32":
            why = "factors of 16 digits are below a long sum's bound"
            yield replace(case, name=f"long_{terms}", why=why, seed=None)


def rounds_factors(
    bench: CaseCache, worker: Worker, implementation: Implementation, dtype: str, config: Config | None
) -> Mismatch | Broken | LibraryFallback | None:
    """The failure, if any, of an implementation on its operator's longest products."""
    for case in long_products(bench.operator, dtype):
        prepared = bench.prepare_if_defined(case, dtype)
        if isinstance(prepared, Undefined):
            continue
        ran = run_once(bench, worker, implementation, prepared, config)
        if isinstance(ran, Rejected):
            continue
        if not isinstance(ran.outcome, Checked):
            return ran.outcome
        failure = _asked_again(bench, worker, ran.launch, prepared, ran.outcome)
        worker.request(Release(launch=ran.launch))
        if failure is not None:
            return failure
    return None


def _asked_again(
    bench: CaseCache, worker: Worker, launch: int, prepared: PreparedCase, first: Checked
) -> Mismatch | Broken | None:
    loud = [metrics for metrics in first.metrics if (metrics.noise or 0.0) > LOUD and metrics.elements >= TELLING]
    if not loud:
        return None
    short = with_digits(bench, prepared, DIGITS)
    broken = run_again(bench, worker, launch, short)
    outcome = broken or judge(short, bench.operator, bench.host.isolation)
    if not isinstance(outcome, Checked):
        return outcome
    left = {metrics.output: metrics.noise or 0.0 for metrics in outcome.metrics}
    for metrics in loud:
        if (metrics.noise or 0.0) > FALLS * left[metrics.output]:
            return _mismatch(prepared, metrics, left[metrics.output], bench.host.isolation)
    return None


def _mismatch(prepared: PreparedCase, metrics: Metrics, left: float, isolation: str) -> Mismatch:
    return Mismatch(
        case=prepared.case,
        dtype=prepared.dtype,
        output=metrics.output,
        index=metrics.worst_index,
        expected=metrics.worst_expected,
        actual=metrics.worst_actual,
        tolerance=metrics.worst_bound,
        wrong=0,
        total=metrics.elements,
        law=None,
        cause=f"its factors are rounded: all elements together stand at {metrics.noise:.2g} of what float32 sums may "
        f"be off, and at {left:.2g} where every factor has {DIGITS} digits. Errors of sums would be the same: multiply "
        "in float32, or say with compute_dtype that factors are rounded",
        metrics=metrics,
        isolation=isolation,
    )


def with_digits(bench: CaseCache, prepared: PreparedCase, digits: int) -> PreparedCase:
    """The same memory with its floating-point inputs rounded to so many binary digits."""
    arena = prepared.arena
    prepared.reset()
    here = arena if prepared.place.type == "cpu" else arena.mirror(prepared.place, filled=True)
    for slot in arena.slots:
        if slot.role == "input" and not DTYPES[slot.dtype].whole:
            tensor = here.tensor(slot.name)
            tensor.copy_(rounded(tensor.double(), digits))
    truth = consult(bench.operator, prepared.case, prepared.dtype, here.tensors("input"))
    pristine = here.bytes().clone() if here is arena else here.bytes()
    return replace(prepared, truth=truth, pristine=pristine, in_first=None)
