"""What the pattern of wrong elements says of the bug: the decision tree of seed 004, appendix B2.1, made executable.

Each question looks at the evidence alone: where elements are wrong, what stands there instead, how the error grows.
They are asked in the tree's order, from "nothing was written" to "a little too imprecise"; the first that fits answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.evidence.verdict import Mismatch
from opforge.verify.explain.not_numbers import by_traces, computed
from opforge.verify.explain.payloads import Traces

SLIGHT = 0.05
"""A relative error up to which precision, not position, is to blame."""

SQUARE_OVERFLOWS = DTYPES["float32"].largest ** 0.5

CANCELLED = 0.3
"""The same for long sums, whose terms cancel: a slight error of the sum of magnitudes is a large one of the sum."""


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """`actual`, `expected`: float64 tensors; `wrong`: a bool tensor, all of one shape; `finite`: wrong where both are
    finite; `inputs`: by name.
    """

    actual: Any
    expected: Any
    wrong: Any
    finite: Any
    bad: int
    inputs: Mapping[str, Any]


ONE = "one element is wrong: too little to tell a cause by"
FEW = 2
"""Wrong elements up to which no pattern is told: any two lie on a line."""


def likely_cause(
    actual: Any,
    expected: Any,
    wrong: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    traces: Traces | None = None,
    whole: bool = False,
) -> str:
    """One sentence on the likely cause. `actual` and `expected` are float64 tensors, `wrong` a bool tensor, all of one
    shape; `inputs` are the inputs in float64 by name.

    traces   what payloads say of each element, where they were looked at
    whole    the output holds whole numbers, which are exact
    """
    import torch

    finite = torch.isfinite(actual) & torch.isfinite(expected) & wrong
    evidence = _Evidence(
        actual=actual, expected=expected, wrong=wrong, finite=finite, bad=int(wrong.sum()), inputs=inputs or {}
    )
    if not evidence.bad:
        return "no element is wrong"
    if traces is not None:
        words = by_traces(wrong, traces, _tail(wrong)) if not whole or evidence.bad > FEW else None
        words = words or computed(actual, expected, wrong, evidence.inputs)
        if words is not None:
            return words
    if evidence.bad == 1:
        return ONE
    if whole and (steps := _steps(evidence)) is not None:
        return steps
    for question in QUESTIONS:
        words = question(evidence)
        if words is not None:
            return words
    copied = _an_input(actual, inputs or {})
    if copied is not None:
        return copied
    return f"{evidence.bad} of {wrong.numel()} elements are wrong without a pattern: an index, a mask, or a race"


def _steps(e: _Evidence) -> str | None:
    """Whole numbers that are one step off, wherever they are wrong."""
    off = (e.actual - e.expected)[e.wrong]
    if not bool((off.abs() == 1).all()):
        return None
    words = f"{e.bad} of {e.wrong.numel()} elements are one step off, "
    if e.bad <= FEW:
        return f"{words}too few to tell a cause by"
    signs = {int(sign) for sign in e.expected[e.wrong].sign().unique().tolist()} - {0}
    if bool((e.actual[e.wrong].abs() < e.expected[e.wrong].abs()).all()):
        return f"{words}all of them towards zero: truncated instead of rounded, or a scale that is too large"
    if bool((off < 0).all()):
        return (
            f"{words}all of them below: floored instead of rounded" if len(signs) > 1 else f"{words}all of them below"
        )
    if bool((off > 0).all()):
        return f"{words}all of them above: rounded up instead of to nearest"
    return f"{words}on either side: rounded twice, another rule for ties, or a scale that is a little off"


def _an_input(actual: Any, inputs: Mapping[str, Any]) -> str | None:
    """Whether the output is one of the inputs, as it is or broadcast."""

    for name, tensor in inputs.items():
        if (
            tensor.numel() < 2
            or tensor.ndim > actual.ndim
            or any(a not in (1, b) for a, b in zip(reversed(tensor.shape), reversed(actual.shape), strict=False))
        ):
            continue
        if _alike(actual, tensor.double().expand(actual.shape)):
            words = "" if tensor.shape == actual.shape else ", broadcast"
            return f"the output is the input {name}{words}: nothing is computed with it"
    return None


def _alike(actual: Any, other: Any) -> bool:
    """Whether one is the other to 1 % of each element, or of the median element where one is next to nothing.

    Measured against the values themselves: all of a softmax's 263,168 results are below 1e-4.
    """
    import torch

    median = float(other.abs().nan_to_num(posinf=0.0).median()) if other.numel() else 0.0
    return bool(torch.allclose(actual, other, rtol=1e-2, atol=1e-2 * median, equal_nan=True))


def from_widths(cause: str, right: Sequence[int], wrong: Sequence[int]) -> str | None:
    """What the widths of right and wrong cases say: padding of a block that enters a statistic shows where the width
    fills no block.

    right, wrong   elements along the last axis in cases that passed and that failed
    None where no block divides all right widths and no wrong one, or the cause is a place or a value of its own.
    """
    if not any(words in cause for words in ("too low a precision", "factor of its own", "without a pattern", "beyond")):
        return None
    known = {width for width in right if width > 1}
    for block in (1024, 512, 256, 128, 64, 32, 16, 8, 4):
        if (
            len(known) >= WIDTHS
            and all(width % block == 0 for width in known)
            and all(width % block for width in wrong)
        ):
            return (
                f"right where the width is a multiple of {block} ({_few(known)}), wrong where it is not "
                f"({_few(set(wrong))}): padding of the last block enters a sum, a mean or a variance"
            )
    return None


def _few(widths: set[int]) -> str:
    return ", ".join(str(width) for width in sorted(widths)[:4])


WIDTHS = 2
"""Right widths without which nothing is said of widths."""


def from_lengths(failure: Mismatch, right: Sequence[float], wrong: Sequence[float]) -> str | None:
    """What the reduction lengths of right and wrong cases say: an accumulator that is too small fails from some length
    on.

    right, wrong   terms accumulated per element (see oracle.reduction_length) in cases that passed and that failed
    None when lengths do not separate them, or when the error is not a slight one.
    """
    shortest = min(wrong, default=0.0)
    below = [length for length in right if length < shortest]
    if shortest < 64 or not below or any(length >= shortest for length in right):
        return None
    if failure.metrics is None or not failure.metrics.l2_rel <= CANCELLED:
        return None
    return (
        f"right up to K = {max(below):.0f} terms, wrong from K = {shortest:.0f} on, by "
        f"{failure.metrics.l2_rel:.1g} of the norm: an accumulator in too low a precision"
    )


def _rows_with(e: _Evidence, holds: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    """Of each row of the output, whether it has a wrong element, and whether `holds` is true of an element in that row
    of an input; None where no input
    has such rows, or none holds it."""
    for tensor in e.inputs.values():
        if (
            e.wrong.ndim
            and tensor.is_floating_point()
            and tensor.ndim >= 1
            and tensor.numel()
            and tensor.shape[:-1] in (e.wrong.shape[:-1], e.wrong.shape)
        ):
            wrong = e.wrong if tensor.shape[:-1] == e.wrong.shape else e.wrong.any(-1)
            held = holds(tensor).any(-1)
            if bool(held.any()):
                return wrong, held
    return None


def _overflowing_squares(e: _Evidence) -> str | None:
    import torch

    rows = _rows_with(e, lambda x: torch.isfinite(x) & (x.abs() > SQUARE_OVERFLOWS))
    if rows is None or bool((rows[0] & ~rows[1]).any()):
        return None
    lost = ~torch.isfinite(e.actual) | (e.actual == 0)
    if not bool(lost[e.wrong].all()) or not bool(torch.isfinite(e.expected[e.wrong]).all()):
        return None
    return (
        "every wrong row holds a value beyond 1.8e19, whose square float32 cannot hold: scale by the largest "
        "magnitude before squares are added"
    )


def _special_inputs(e: _Evidence) -> str | None:
    import torch

    rows = _rows_with(e, lambda x: ~torch.isfinite(x))
    if rows is None:
        return None
    wrong, held = rows
    if bool((wrong & held).any()) and bool((wrong & ~held).any()):
        return None
    if not bool((wrong & held).any()):
        made = ~torch.isfinite(e.actual[e.wrong])
        return (
            "a NaN or an infinity of one row reaches others: a mask, a reduction or a buffer that rows share"
            if bool(made.all())
            else None
        )
    if bool(held.all()):
        return None
    lost = bool(torch.isnan(e.expected[e.wrong]).all())
    why = (
        "it is dropped by a comparison or a maximum"
        if lost
        else "inf - inf, 0 * inf, or an infinity taken for a number"
    )
    return f"wrong only in rows that hold NaN or an infinity: {why}"


def _not_written(e: _Evidence) -> str | None:
    import torch

    if int((torch.isnan(e.actual) & e.wrong).sum()) < e.bad:
        return None
    tail = _tail(e.wrong)
    if tail:
        return (
            f"every wrong element is NaN, and {tail}: a tail that is not written (a mask that hides too much, a "
            "grid that is too small)"
        )
    return f"every wrong element is NaN: never written, or computed from memory outside an input{_where(e.wrong)}"


def _zeros(e: _Evidence) -> str | None:
    if not bool((e.actual[e.wrong] == 0).all()) or bool(e.expected[e.wrong].isnan().all()):
        return None
    tail = _tail(e.wrong)
    if tail:
        return f"every wrong element is 0, and {tail}: the mask of the last block"
    return f"every wrong element is 0: a mask that hides too much, or a store that is skipped{_where(e.wrong)}"


def _infinite(e: _Evidence) -> str | None:
    import torch

    if bool((torch.isinf(e.actual) & torch.isfinite(e.expected))[e.wrong].all()):
        return (
            "every wrong element is infinite where the result is finite: an intermediate overflows (exp without "
            "the shift by the maximum, squares or sums in float16)"
        )
    return None


def _special_values(e: _Evidence) -> str | None:
    import torch

    lost = torch.isnan(e.expected) & ~torch.isnan(e.actual) & e.wrong
    if int(lost.sum()) == e.bad:
        return "NaN is lost: a comparison or a maximum that drops it (fmax, where(x > m), a -inf for what is masked)"
    made = torch.isnan(e.actual) & ~torch.isnan(e.expected) & e.wrong
    if 0 < int(made.sum()) and int((made | lost).sum()) == e.bad and bool(torch.isinf(e.expected[made]).any()):
        return "NaN where the result is infinite: inf - inf or 0 * inf in an intermediate"
    return None


def _only_the_tail(e: _Evidence) -> str | None:
    tail = _tail(e.wrong)
    return f"{tail}: the mask of the last block, or elements beyond the end that were counted" if tail else None


def _every_nth(e: _Evidence) -> str | None:
    if not e.wrong.ndim or e.wrong.shape[-1] < 4:
        return None
    columns = e.wrong.reshape(-1, e.wrong.shape[-1]).any(0).nonzero().flatten()
    if len(columns) < 2:
        return None
    steps = set((columns[1:] - columns[:-1]).tolist())
    if len(steps) == 1 and (step := steps.pop()) > 1:
        ordinal = {2: "second", 3: "third"}.get(step, f"{step}th")
        return f"every {ordinal} column is wrong: a stride or vector width"
    return None


def _scaled(e: _Evidence) -> str | None:
    nonzero = e.finite & (e.expected != 0)
    if int(nonzero.sum()) < 2:
        return None
    ratio = e.actual[nonzero] / e.expected[nonzero]
    mean = float(ratio.mean())
    if mean and float(ratio.std()) / abs(mean) < 1e-3 and abs(mean - 1) > 1e-3:
        return f"wrong by a constant factor of {mean:.4g}: a missing or doubled scale"
    rows = _row_factors(e)
    if rows:
        return rows
    difference = e.actual[e.finite] - e.expected[e.finite]
    size = float(difference.abs().mean())
    if size and float(difference.std()) / size < 1e-3:
        return f"wrong by a constant {float(difference.mean()):.4g}: a missing or doubled term"
    return None


def _row_factors(e: _Evidence) -> str | None:
    """Each row wrong by a factor of its own: its normaliser was computed over the wrong elements."""
    if e.wrong.ndim < 2 or e.wrong.shape[-1] < 4:
        return None
    import torch

    usable = torch.isfinite(e.actual) & torch.isfinite(e.expected) & (e.expected != 0)
    rows = range(min(64, e.wrong.reshape(-1, e.wrong.shape[-1]).shape[0]))
    actual, expected, keep, wrong = (
        tensor.reshape(-1, e.wrong.shape[-1]) for tensor in (e.actual, e.expected, usable, e.wrong)
    )
    factors = []
    for row in rows:
        if not bool(wrong[row].any()) or int(keep[row].sum()) < 4:
            continue
        ratio = actual[row][keep[row]] / expected[row][keep[row]]
        mean = float(ratio.mean())
        if not mean or not float(ratio.std()) / abs(mean) < 2e-2:
            return None
        factors.append(mean)
    if len(factors) > 1 and max(abs(factor - 1) for factor in factors) > SLIGHT:
        return (
            f"each row is wrong by a factor of its own ({min(factors):.4g} to {max(factors):.4g}): a sum or "
            "maximum taken over the wrong elements, or without its eps"
        )
    return None


def _swapped_axes(e: _Evidence) -> str | None:
    if e.wrong.ndim < 2:
        return None
    a, b = e.actual.nan_to_num(), e.expected.nan_to_num()
    if _alike(a, b):
        # each value stands where it should, a little off: one row is its own transpose
        return None
    if e.wrong.shape[-1] == e.wrong.shape[-2] and _alike(a, b.transpose(-1, -2)):
        return "the result is the transpose of what it should be: swapped axes"
    if _alike(a.flatten(), b.transpose(-1, -2).flatten()):
        return "the memory holds the transpose of the result: the output's strides are swapped"
    return None


def _shifted(e: _Evidence) -> str | None:

    if not e.wrong.ndim or e.wrong.shape[-1] < 4:
        return None
    a, b = e.actual.nan_to_num(), e.expected.nan_to_num()
    if _alike(a, b):
        return None
    for shift in (1, -1):
        inner = slice(1, -1)
        if _alike(a[..., inner], b.roll(shift, -1)[..., inner]):
            return f"every element is its {'left' if shift == 1 else 'right'} neighbour's: an offset of one"
    return None


def _misplaced(e: _Evidence) -> str | None:

    a, b = (tensor.nan_to_num().flatten() for tensor in (e.actual, e.expected))
    if e.wrong.numel() > 1 and float(b.std()) and not _alike(a, b) and _alike(a.sort().values, b.sort().values):
        return "the right values stand in the wrong places: an index or a stride"
    return None


def _imprecise(e: _Evidence) -> str | None:
    nonzero = e.finite & (e.expected != 0)
    if int(nonzero.sum()) < e.bad / 2 or not int(nonzero.sum()):
        return None
    relative = float(((e.actual - e.expected).abs() / e.expected.abs())[nonzero].median())
    if relative < SLIGHT:
        return (
            f"errors of about {relative:.1g} relative in {e.bad} of {e.wrong.numel()} elements: an accumulator or "
            "an intermediate in too low a precision, or another eps"
        )
    return None


QUESTIONS: tuple[Callable[[_Evidence], str | None], ...] = (
    _overflowing_squares,
    _not_written,
    _zeros,
    _infinite,
    _special_values,
    _special_inputs,
    _swapped_axes,
    _shifted,
    _every_nth,
    _only_the_tail,
    _scaled,
    _imprecise,
    _misplaced,
)


def _tail(wrong: Any) -> str | None:
    """Which trailing columns, rows or elements alone are wrong, in words; None when they are not a tail."""
    if not wrong.ndim or bool(wrong.all()):
        return None
    flat = wrong.reshape(-1, wrong.shape[-1])
    for name, line in (("columns", flat.any(0)), ("rows", flat.any(1))):
        places = line.nonzero().flatten()
        first, extent = int(places[0]), line.shape[0]
        if first > 0 and len(places) == extent - first:
            return f"only {name} from {first} on are wrong"
    places = wrong.flatten().nonzero().flatten()
    if int(places[0]) > 0 and len(places) == wrong.numel() - int(places[0]):
        return f"only elements from {int(places[0])} on are wrong"
    return None


def _where(wrong: Any) -> str:
    if not wrong.ndim or bool(wrong.all()):
        return ""
    flat = wrong.flatten().nonzero().flatten()
    return f"; from flat element {int(flat[0])} to {int(flat[-1])} of {wrong.numel()}"
