"""Compares one output with its expectation. Every question is asked so that NaN loses."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.evidence.verdict import Metrics
from opforge.verify.oracle.expectation import TOGETHER, Expectation, half_ulp, parts_of
from opforge.verify.oracle.integer_outputs import right_whole
from opforge.verify.oracle.rounded_outputs import at_ties

HISTOGRAM_DECADES = 8
KL_BINS = 64


@dataclass(frozen=True, kw_only=True)
class ElementErrors:
    """Which elements are wrong (a bool tensor of the output's shape), and the metrics. Above a `noise` of 1 the output
    is wrong as a whole.
    """

    wrong: Any
    noise: float | None
    measured: Callable[[], Metrics]

    @functools.cached_property
    def metrics(self) -> Metrics:
        """The errors in numbers. Worked out when they are asked for: on a large output they cost ten times what the
        judgement does.
        """
        return self.measured()

    @property
    def agrees(self) -> bool:
        """Whether no element is wrong, and they are not wrong together."""
        return not bool(self.wrong.any()) and (self.noise or 0.0) <= 1


def compare(actual: Any, expectation: Expectation) -> ElementErrors:
    """Judge `actual` (a CPU tensor in its storage dtype) element by element.

    An element is right when |actual - expected| <= bound. Where the expectation is NaN or infinite, or beyond the
    largest finite value of the dtype, the same must stand in `actual`; where float32 cannot hold what is added up, any
    value that is not finite is right as well.
    """
    right, finite = _right(actual, expectation)
    if expectation.roundings is not None and not bool(right.all()):
        expectation = at_ties(actual, expectation, lambda got, other: _right(got, other)[0])
        right, finite = _right(actual, expectation)
    wrong = ~right
    heard = noise(actual, expectation)
    return ElementErrors(
        wrong=wrong,
        noise=heard,
        measured=lambda: replace(_measure(expectation, actual.detach(), finite, wrong), noise=heard),
    )


def noise(actual: Any, expectation: Expectation) -> float | None:
    """The root mean square of |error| / typical error, over the most that is allowed for so many elements; None where
    the operator does not say what is typical.

    An honest kernel's stands below 1/3 of what is typical (definitions.bounds.sums). Few elements may all be unlucky:
    4 / sqrt(groups) is added, four standard deviations of a mean square of that many normal errors at the least;
    elements that share an error count as one.
    """
    import torch

    if expectation.typical is None:
        return None
    count, squares = 0, 0.0
    for part in parts_of(expectation.expected.shape, TOGETHER):
        got, expected = actual.detach()[part].to(torch.float64), expectation.expected[part]
        asked = torch.isfinite(expected) & torch.isfinite(got)
        if expectation.beyond is not None:
            asked &= ~expectation.beyond[part]
        share = ((got - expected) / expectation.typical[part])[asked]
        count += share.numel()
        squares += float(share.square().sum())
    if not count:
        return 0.0
    elements: float = min(expectation.groups, count)
    return math.sqrt(squares / count) / float(1 + 4 / elements**0.5)


def place_of(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of an element by its place in row-major order. torch.unravel_index would import a symbolic algebra
    system first.

    >>> place_of(7, (2, 5))
    (1, 2)
    """
    index: list[int] = []
    for extent in reversed(shape):
        flat, rest = divmod(flat, extent)
        index.append(rest)
    return tuple(reversed(index))


def right_elements(actual: Any, expectation: Expectation) -> Any:
    """Which elements are right, as `compare` judges them, without the metrics."""
    right = _right(actual, expectation)[0]
    if expectation.roundings is None or bool(right.all()):
        return right
    return _right(actual, at_ties(actual, expectation, lambda got, other: _right(got, other)[0]))[0]


def _right(actual: Any, expectation: Expectation) -> tuple[Any, Any]:
    """Which elements are right, and which are judged by their distance (the expectation is finite and not beyond the
    dtype).
    """
    import torch

    if expectation.exact is not None:
        right = right_whole(actual, expectation)
        # an index that is right by the rule for ties has no distance from the reference's
        return right, right & (actual.detach().to(torch.int64) == expectation.exact)
    right, finite = (torch.empty_like(expectation.expected, dtype=torch.bool) for _ in range(2))
    for part in parts_of(right.shape, TOGETHER):
        beyond = None if expectation.beyond is None else expectation.beyond[part]
        right[part], finite[part] = _right_part(
            actual.detach()[part], expectation.dtype, expectation.expected[part], expectation.bound[part], beyond
        )
    return right, finite


def _right_part(actual: Any, dtype: str, expected: Any, bound: Any, beyond: Any) -> tuple[Any, Any]:
    """As `_right`, of elements that are there at once."""
    import torch

    form = DTYPES[dtype]
    got = actual.to(torch.float64)
    # beyond this a correctly rounded result is infinite; within the bound of it either is right
    limit = form.largest + form.largest * form.epsilon / 4
    overflows = torch.isfinite(expected) & (expected * got.sign() >= limit - bound)
    must_overflow = torch.isfinite(expected) & (expected.abs() >= limit + bound)
    finite = torch.isfinite(expected) & ~must_overflow
    error = (got - expected).abs()
    right = torch.where(finite, error <= bound, torch.zeros_like(finite))
    right |= overflows & torch.isinf(got)
    right |= torch.isnan(expected) & torch.isnan(got)
    right |= torch.isinf(expected) & (got == expected)
    if beyond is not None:
        right |= beyond & ~torch.isfinite(got)
    return right, finite


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """What is added up over parts of an output, in their order: counts, sums, largest values, norms, the histogram of
    errors over their bounds, and the worst element with its place in row-major order.
    """

    elements: int
    count: int
    normals: int
    clipped: int
    error: float
    relative: float
    product: float
    max_abs: float
    max_rel: float
    max_ulp: float
    norm_expected: float
    norm_actual: float
    norm_error: float
    histogram: tuple[int, ...]
    worst_ratio: float
    worst: int

    def __add__(self, other: _Sums) -> _Sums:
        further = other.worst_ratio > self.worst_ratio
        return _Sums(
            elements=self.elements + other.elements,
            count=self.count + other.count,
            normals=self.normals + other.normals,
            clipped=self.clipped + other.clipped,
            error=self.error + other.error,
            relative=self.relative + other.relative,
            product=self.product + other.product,
            max_abs=max(self.max_abs, other.max_abs),
            max_rel=max(self.max_rel, other.max_rel),
            max_ulp=max(self.max_ulp, other.max_ulp),
            norm_expected=math.hypot(self.norm_expected, other.norm_expected),
            norm_actual=math.hypot(self.norm_actual, other.norm_actual),
            norm_error=math.hypot(self.norm_error, other.norm_error),
            histogram=tuple(map(sum, zip(self.histogram, other.histogram, strict=True))),
            worst_ratio=max(self.worst_ratio, other.worst_ratio),
            worst=self.elements + other.worst if further else self.worst,
        )


def _sums(dtype: str, got: Any, expected: Any, bound: Any, finite: Any, wrong: Any) -> _Sums:
    """Of elements that are there at once, all in float64."""
    import torch

    # a result that rightly overflowed, or rightly did not, has no finite error to measure
    measured = finite & (wrong | torch.isfinite(got))
    ratio = torch.where(measured, (got - expected).abs() / bound.clamp(min=1e-300), torch.zeros_like(expected))
    # an element that is wrong without a finite error is infinitely wrong
    ratio = torch.where(wrong & ~(ratio > 1), torch.full_like(ratio, math.inf), ratio)
    ratio = torch.where(torch.isnan(ratio), torch.full_like(ratio, math.inf), ratio)
    worst = int(ratio.argmax()) if ratio.numel() else 0
    edges = torch.tensor(
        [10.0**-power for power in range(HISTOGRAM_DECADES - 2, -2, -1)], dtype=torch.float64, device=ratio.device
    )
    histogram = torch.bucketize(ratio.flatten(), edges).bincount(minlength=HISTOGRAM_DECADES + 1)
    both = finite & torch.isfinite(got)
    e, a = expected[both], got[both]
    error = (a - e).abs()
    # relative error where the expectation is a normal number; a relative error against zero says nothing
    normal = e.abs() >= 2.0 ** DTYPES[dtype].min_exponent
    relative = error[normal] / e.abs()[normal]
    ulp = (error / (2 * half_ulp(e, dtype)).clamp(min=1e-300)) if error.numel() else error

    def most(values: Any) -> float:
        return float(values.max()) if values.numel() else 0.0

    return _Sums(
        elements=ratio.numel(),
        count=error.numel(),
        normals=relative.numel(),
        clipped=int((torch.isfinite(expected) & (got.abs() >= DTYPES[dtype].largest)).sum()),
        error=float(error.sum()),
        relative=float(relative.sum()),
        product=float((e * a).sum()),
        max_abs=most(error),
        max_rel=most(relative),
        max_ulp=most(ulp),
        norm_expected=float(e.norm()),
        norm_actual=float(a.norm()),
        norm_error=float(error.norm()),
        histogram=tuple(int(n) for n in histogram),
        worst_ratio=float(ratio.flatten()[worst]) if ratio.numel() else 0.0,
        worst=worst,
    )


def _measure(expectation: Expectation, actual: Any, finite: Any, wrong: Any) -> Metrics:
    """The metrics. Quantiles and KL divergence of more than TOGETHER elements are those of every n-th."""
    import torch

    expected, bound, dtype = expectation.expected, expectation.bound, expectation.dtype
    found = functools.reduce(
        operator.add,
        (
            _sums(dtype, actual[part].double(), expected[part], bound[part], finite[part], wrong[part])
            for part in parts_of(expected.shape, TOGETHER)
        ),
    )
    elements = found.elements
    worst = place_of(found.worst, expected.shape) if elements else ()
    every = slice(None, None, max(1, -(-elements // TOGETHER)))
    got, e, allowed = (one.flatten()[every].double() for one in (actual, expected, bound))
    both = finite.flatten()[every] & torch.isfinite(got)
    got, e, allowed = got[both], e[both], allowed[both]
    quantiles = _quantiles((got - e).abs(), (0.5, 0.9, 0.99))
    norm_e, norm_a, noise = found.norm_expected, found.norm_actual, found.norm_error

    def at(values: Any) -> float:
        return float(values[worst]) if elements else 0.0

    return Metrics(
        output=expectation.output,
        elements=elements,
        max_abs=found.max_abs,
        mean_abs=found.error / max(1, found.count),
        max_rel=found.max_rel,
        mean_rel=found.relative / max(1, found.normals),
        l2_rel=noise / norm_e if norm_e else noise,
        quantiles_abs=(quantiles[0], quantiles[1], quantiles[2]),
        cosine=found.product / (norm_e * norm_a) if norm_e and norm_a else float(norm_e == norm_a),
        sqnr_db=20 * math.log10(norm_e / noise) if noise and norm_e else math.inf,
        max_ulp=found.max_ulp,
        worst_ratio=found.worst_ratio,
        worst_index=worst,
        worst_expected=at(expected),
        worst_actual=at(actual),
        worst_bound=at(bound),
        histogram=found.histogram,
        kl=_kl(e, got, allowed),
        clip_ratio=found.clipped / max(1, elements),
    )


def _quantiles(values: Any, wanted: Sequence[float]) -> list[float]:
    """Quantiles by selection: torch.quantile refuses more than 16 million values."""
    if not values.numel():
        return [0.0 for _ in wanted]
    places = [int(q * (values.numel() - 1)) for q in wanted]
    if values.is_cuda:
        # there, selecting runs in one block and sorting in all of them
        ordered = values.flatten().sort().values
        return [float(ordered[place]) for place in places]
    return [float(values.flatten().kthvalue(1 + place).values) for place in places]


def _kl(expected: Any, actual: Any, bound: Any) -> float:
    """KL divergence of the histogram of `actual` from that of `expected`, over the range of both, in nats.

    0 where a bin would be narrower than the bound: then a histogram shows rounding, not a distribution. Half a count is
    added to every bin (Krichevsky and Trofimov, IEEE Trans. Inf. Theory 27, 1981), so that one value that crosses an
    edge weighs little.
    """
    import torch

    if expected.numel() < KL_BINS:
        return 0.0
    low = float(min(expected.min(), actual.min()))
    high = float(max(expected.max(), actual.max()))
    if not low < high or not math.isfinite(high - low) or (high - low) / KL_BINS <= _quantiles(bound, (0.5,))[0]:
        return 0.0
    p, q = (torch.histc(values, bins=KL_BINS, min=low, max=high) + 0.5 for values in (expected, actual))
    p, q = p / p.sum(), q / q.sum()
    return max(0.0, float((p * (p / q).log()).sum()))
