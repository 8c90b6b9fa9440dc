"""Compares one output with its expectation. Every question is asked so that NaN loses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opforge.core.dtypes import DTYPES
from opforge.core.verdict import Metrics
from opforge.verify.oracle.expectation import Expectation, half_ulp
from opforge.verify.oracle.integer_outputs import right_whole

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
    expected, bound = expectation.expected, expectation.bound
    right, finite = _right(actual, expectation)
    got = actual.detach().double()
    wrong = ~right
    heard = noise(actual, expectation)
    return ElementErrors(
        wrong=wrong,
        noise=heard,
        measured=lambda: replace(_measure(expectation, got, expected, bound, finite, wrong), noise=heard),
    )


def noise(actual: Any, expectation: Expectation) -> float | None:
    """The root mean square of |error| / typical error, over the most that is allowed for so many elements; None where
    the operator does not say what is typical.

    An honest kernel's stands below 1/3 of what is typical (core.rounding). Few elements may all be unlucky: 4 /
    sqrt(groups) is added, four standard deviations of a mean square of that many normal errors at the least; elements
    that share an error count as one.
    """
    import torch

    if expectation.typical is None:
        return None
    got = actual.detach().to(torch.float64)
    asked = torch.isfinite(expectation.expected) & torch.isfinite(got)
    if expectation.beyond is not None:
        asked &= ~expectation.beyond
    share = ((got - expectation.expected) / expectation.typical)[asked]
    if not share.numel():
        return 0.0
    elements: float = min(expectation.groups, share.numel())
    return float(share.square().mean().sqrt()) / float(1 + 4 / elements**0.5)


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
    return _right(actual, expectation)[0]


def _right(actual: Any, expectation: Expectation) -> tuple[Any, Any]:
    """Which elements are right, and which are judged by their distance (the expectation is finite and not beyond the
    dtype).
    """
    import torch

    expected, bound = expectation.expected, expectation.bound
    if expectation.exact is not None:
        right = right_whole(actual, expectation)
        # an index that is right by the rule for ties has no distance from the reference's
        return right, right & (actual.detach().to(torch.int64) == expectation.exact)
    form = DTYPES[expectation.dtype]
    got = actual.detach().to(torch.float64)
    # beyond this a correctly rounded result is infinite; within the bound of it either is right
    limit = form.largest + form.largest * form.epsilon / 4
    overflows = torch.isfinite(expected) & (expected.abs() >= limit - bound)
    must_overflow = torch.isfinite(expected) & (expected.abs() >= limit + bound)
    finite = torch.isfinite(expected) & ~must_overflow
    error = (got - expected).abs()
    right = torch.where(finite, error <= bound, torch.zeros_like(finite))
    right |= overflows & torch.isinf(got) & (got.sign() == expected.sign())
    right |= torch.isnan(expected) & torch.isnan(got)
    right |= torch.isinf(expected) & (got == expected)
    if expectation.beyond is not None:
        right |= expectation.beyond & ~torch.isfinite(got)
    return right, finite


def _measure(expectation: Expectation, got: Any, expected: Any, bound: Any, finite: Any, wrong: Any) -> Metrics:
    import torch

    elements = expected.numel()
    both = finite & torch.isfinite(got)
    e, a = expected[both], got[both]
    error = (a - e).abs()
    count = error.numel()
    # a result that rightly overflowed, or rightly did not, has no finite error to measure
    measured = finite & (wrong | torch.isfinite(got))
    ratio = torch.where(measured, (got - expected).abs() / bound.clamp(min=1e-300), torch.zeros_like(expected))
    # an element that is wrong without a finite error is infinitely wrong
    ratio = torch.where(wrong & ~(ratio > 1), torch.full_like(ratio, math.inf), ratio)
    ratio = torch.where(torch.isnan(ratio), torch.full_like(ratio, math.inf), ratio)
    worst = int(ratio.argmax()) if elements else 0
    index = place_of(worst, expected.shape) if elements else ()
    # relative error where the expectation is a normal number; a relative error against zero says nothing
    normal = e.abs() >= 2.0 ** DTYPES[expectation.dtype].min_exponent
    relative = error[normal] / e.abs()[normal]
    norm_e, norm_a = e.norm().item(), a.norm().item()
    noise = error.norm().item()
    edges = torch.tensor(
        [10.0**-power for power in range(HISTOGRAM_DECADES - 2, -2, -1)], dtype=torch.float64, device=ratio.device
    )
    histogram = torch.bucketize(ratio.flatten(), edges).bincount(minlength=HISTOGRAM_DECADES + 1)
    ulp = (error / (2 * half_ulp(e, expectation.dtype)).clamp(min=1e-300)) if count else error

    def of(values: Any, reduce: str) -> float:
        return float(getattr(values, reduce)()) if values.numel() else 0.0

    quantiles = _quantiles(error, (0.5, 0.9, 0.99))
    return Metrics(
        output=expectation.output,
        elements=elements,
        max_abs=of(error, "max"),
        mean_abs=of(error, "mean"),
        max_rel=of(relative, "max"),
        mean_rel=of(relative, "mean"),
        l2_rel=noise / norm_e if norm_e else noise,
        quantiles_abs=(quantiles[0], quantiles[1], quantiles[2]),
        cosine=float((e * a).sum() / (norm_e * norm_a)) if norm_e and norm_a else float(norm_e == norm_a),
        sqnr_db=20 * math.log10(norm_e / noise) if noise and norm_e else math.inf,
        max_ulp=of(ulp, "max"),
        worst_ratio=float(ratio.flatten()[worst]) if elements else 0.0,
        worst_index=index,
        worst_expected=float(expected.flatten()[worst]) if elements else 0.0,
        worst_actual=float(got.flatten()[worst]) if elements else 0.0,
        worst_bound=float(bound.flatten()[worst]) if elements else 0.0,
        histogram=tuple(int(n) for n in histogram),
        kl=_kl(e, a, bound[both]),
        clip_ratio=of((torch.isfinite(expected) & (got.abs() >= DTYPES[expectation.dtype].largest)).double(), "mean"),
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
