"""How far sums of float32 may be off, whatever the order in which they are added up: docs/verification.md derives it.

What is rounded is the running sum. Rounding errors have random signs, so n of them add up to sqrt(n) times one (Higham
and Mary, SIAM J. Sci. Comput. 41, 2019), and each is relative to the running sum, not to the sum of the absolute terms
(Higham and Mary, SIAM J. Sci. Comput. 42, 2020; Hallman and Ipsen, 2023): for terms with random signs that is smaller
by a factor of sqrt(n). How large a running sum becomes depends on the order, which is the kernel's affair. Its `peak`
covers orders of two kinds:

- parts that lie side by side (one after another, blocks, split-K): differences of two prefix sums, and max|prefix sum|
  is known;
- any other order that does not look at the values (lanes, trees, interleaved warps): the running sum is a random part
  of the terms, its mean lies between 0 and the whole sum, and its standard deviation is at most half the root of the
  sum of squares.

Each function returns Errors: the most one element may be off, and the root mean square over many, both in the unit of
the result. Thresholds stand beside the measurements that chose them (scripts/bounds.py repeats those).
"""

from __future__ import annotations

from typing import Any

from opforge.core.definition.rounding_errors import Errors

EPSILON = 2.0**-23
"""The distance between 1 and the next float32."""

BEYOND = 1e150
"""An error or an intermediate without bound. Its square is still a float64."""

FEW = 64
"""Up to here nothing is left to chance: the running sum is at most the sum of the absolute terms."""

BLOCKS = 16
"""Prefix sums are looked at this often: a trend shows, and what happens between is in the root of the sum of
squares.
"""

LARGEST, TYPICAL = 3.0, 0.4
"""In units of eps * sqrt(n) * peak. Of six orders of summation (one after another, 2 and 32 lanes, 7 parts, tree,
Kahan's), six distributions and n from 64 to
28672 the worst element was off by 0.53, the worst root mean square was 0.13, both for terms added one after another."""

CUT = 1 / 8
"""A tensor core cuts off what lies below the last digit of the largest number it adds (Fasi, Higham, Mikaitis and
Pranesh, PeerJ Comput. Sci. 7, 2021), always towards zero: in units of eps * n * peak each term loses at most 1/4 of
that last digit on average, of a running sum that is half of its peak, on average. Simulated with 16 terms at a time and
one digit more than float32: 0.106 for terms of one sign, 0.02 for centred ones.
"""

ALIKE = 1 / 4
"""Terms that are the same to within the last digit of their sum are all rounded to the same side: n * peak * eps / 8
when they are added one after another.
"""

LANES = 32
"""A row's sum is shared by at least so many accumulators: a warp, or the lanes of a few vectors."""


REPEATED, REPEATED_TYPICAL = 0.75, 0.2
"""In units of eps * sqrt(sum of squares of how often each term occurs) / LANES. A 16-bit format has few values. While
the running sum is within one power of two, each is rounded alike wherever it occurs: such errors add up, over lanes
too. At 263168 terms, where this is the largest part, the worst of 8 lanes (PyTorch's softmax with AVX2) was 0.39, the
root mean square 0.16; of 32 lanes 0.16 and 0.11; where nine of ten terms are one number, at 2048 terms and more, of 8
lanes 0.50 and 0.27, of 32 lanes 0.12 and 0.07 (scripts/bounds.py repeated).
"""

REPEATED_FROM = 1024
"""Shorter rows are covered without: 1024 terms of which nine in ten are one number are off by 14 eps in 8 lanes."""

SAMPLE = 2048
"""Terms of a row that are looked at to learn how often they occur: of bfloat16's values some 1,900 pairs are equal."""


def few_ulps(size: Any, largest: float, typical: float) -> Errors:
    """Of operations that are off by a few units in the last place of `size`: one addition or product is off by half of
    one.
    """
    return Errors(largest * EPSILON * size, typical * EPSILON * size)


def finite(values: Any) -> Any:
    """Infinite and NaN terms have no rounding error: they count as 0."""
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def product_errors(a: Any, b: Any, *, cut: bool, start: Any = 0.0) -> Errors:
    """Of a @ b in float32, [..., m, k] or [k], and [..., k, n] in float64.

    cut     whether tensor cores add (of 16-bit factors, TF32)
    start   what the sums may begin with, such as a bias
    """
    terms = max(1, a.shape[-1])
    peak, alike = peak_of_products(finite(a if a.ndim > 1 else a.unsqueeze(0)), finite(b))
    if a.ndim == 1:
        # of few terms there is no second part: a plain 0
        peak, alike = peak.squeeze(-2), alike if isinstance(alike, float) else alike.squeeze(-2)
    peak = peak + abs(start)
    linear = ALIKE * terms * alike + (CUT * terms if cut else 0.0)
    return Errors(
        EPSILON * peak * (LARGEST * terms**0.5 + linear),
        EPSILON * peak * (TYPICAL * terms**0.5 + linear),
        reached=4 * peak,
    )


def sum_errors(terms: Any, *, lanes: int = LANES) -> Errors:
    """Of the sum over the last axis in float32, which stays as an axis of one; by `lanes` accumulators that meet in a
    tree.
    """
    terms = finite(terms)
    count = terms.shape[-1]
    length = max(1.0, count / lanes + max(count, 2).bit_length())
    peak = _peak_of_terms(terms)
    linear = ALIKE * length * _alike(terms) if count > FEW else 0.0
    return Errors(
        EPSILON * peak * (LARGEST * length**0.5 + linear),
        EPSILON * peak * (TYPICAL * length**0.5 + linear),
        reached=4 * peak,
    )


def positive_sum(count: int, *, lanes: int = LANES) -> tuple[float, float]:
    """The relative error of a sum of `count` terms of one sign, the largest and the typical one: each accumulator has a
    share of the sum, and each of the
    errors of its share; then come the few additions of the tree."""
    steps = count**0.5 / lanes + 2
    return LARGEST * EPSILON * steps, TYPICAL * EPSILON * steps


def exp_errors(shifted: Any, weights: Any) -> tuple[Errors, Errors]:
    """Of rows of exponentials exp(shifted), shifted = x - max(x), in units of each: relative errors of an element (of
    the shape of shifted), and of the row's sum of them (an axis of one). `weights` are the exponentials over their sum.

    An argument carries an error of eps * |shifted|, which exp turns into a relative one, and exp itself is off by two
    units of the last place (CUDA's ex2.approx; sleef's and Triton's); its sum carries what its terms do, on average. 14
    of exp's 23 bits leave 2^-15 = 256 eps.
    """
    distance = finite(shifted).abs()
    carried = finite(weights * distance).sum(dim=-1, keepdim=True)
    largest, typical = positive_sum(shifted.shape[-1])
    alike = EPSILON * _repeated(distance) / LANES
    return few_ulps(4 + 3 * distance, 1.0, 0.4), Errors(
        largest + REPEATED * alike + EPSILON * (3 + 2 * carried),
        typical + REPEATED_TYPICAL * alike + EPSILON * (1 + carried),
    )


def base_two_errors(top: Any) -> Errors:
    """Of log(sum(exp(x - top))) where exponentials are powers of two, exp2(x * log2(e) - top * log2(e)), as
    FlashAttention takes them: the second product is rounded, by up to 2^-24 of itself. All terms share that, so it is
    taken off the logarithm again (2^-24 |top|, at most 64 while a difference may matter); its last places stay off.
    """
    return few_ulps((finite(top).abs() * EPSILON / 2).clamp(max=64.0), 3.0, 1.0)


def _repeated(values: Any) -> Any:
    """Of each row the root of the sum of squares of how often its values occur, where that is more than by chance: an
    axis of one, or 0.0 where rows are short. From `SAMPLE` values of a row: pairs that are equal, and how many there
    would be in all.
    """
    count = values.shape[-1]
    if count <= REPEATED_FROM:
        return 0.0
    ordered = values[..., :: -(-count // SAMPLE)].sort(dim=-1).values
    rows, length = ordered.reshape(-1, ordered.shape[-1]), ordered.shape[-1]
    begins = rows.diff(dim=-1, prepend=rows[:, :1] - 1) != 0
    # the number of a run over all rows, and how long each is
    lengths = begins.flatten().cumsum(0).bincount().double()[1:]
    row_of_run = begins.nonzero()[:, 0]
    squares = lengths.new_zeros(len(rows)).index_add_(0, row_of_run, lengths.square())
    pairs = (squares - length) / (length * (length - 1))
    return (count * pairs.sqrt()).reshape(*values.shape[:-1], 1)


def _alike(terms: Any) -> Any:
    """1.0 where the terms of a sum differ by less than the last digit of it; 1e-14: what float64 may make of the
    difference.
    """
    squares, whole = terms.square().sum(dim=-1, keepdim=True), terms.sum(dim=-1, keepdim=True)
    spread = squares - whole.square() / terms.shape[-1]
    return (spread <= squares * max(16 * (EPSILON * terms.shape[-1]) ** 2, 1e-14)).double()


def _peak_of_terms(terms: Any) -> Any:
    count = terms.shape[-1]
    if count <= FEW:
        return terms.abs().sum(dim=-1, keepdim=True)
    step = -(-count // BLOCKS)
    whole = count // step * step
    ends = terms[..., :whole].unflatten(-1, (-1, step)).sum(dim=-1).cumsum(dim=-1)
    highest = ends.abs().amax(dim=-1, keepdim=True).maximum(terms.sum(dim=-1, keepdim=True).abs())
    return highest.maximum(terms.square().sum(dim=-1, keepdim=True).sqrt())


def peak_of_products(a: Any, b: Any) -> tuple[Any, Any]:
    """The size of the running sums of a @ b, and 1.0 where all of its terms are alike; in float32 where that has the
    range.
    """
    terms = a.shape[-1]
    if terms <= FEW:
        return a.abs() @ b.abs(), 0.0
    rows, columns = a.abs().amax(dim=-1, keepdim=True), b.abs().amax(dim=-2, keepdim=True)
    left, right = a / rows.clamp(min=1e-300), b / columns.clamp(min=1e-300)
    if _narrow(left) and _narrow(right):
        left, right = left.float(), right.float()
    step = -(-terms // BLOCKS)
    prefix = left[..., :step] @ right[..., :step, :]
    highest = prefix.abs()
    for first in range(step, terms, step):
        prefix = prefix + left[..., first : first + step] @ right[..., first : first + step, :]
        highest = highest.maximum(prefix.abs())
    squares = left.square() @ right.square()
    # a spread of the terms below the last digit of their sum; 4e-6: what float32 may make of the difference
    spread = squares - prefix.square() / terms
    alike = (spread <= squares * max(16 * (EPSILON * terms) ** 2, 4e-6)).double()
    return highest.maximum(squares.sqrt()).double() * rows * columns, alike


def _narrow(scaled: Any) -> bool:
    """Whether the squares of products of such factors, the largest of which is 1, are in the range of float32."""
    small = (scaled != 0) & (scaled.abs() < 2.0**-31)
    return not bool(small.any())
