"""How far the statistics of rows in float32 may be off, and what is made of them: means, variances, normalised rows,
and gradients summed over all rows.

`definitions.bounds.sums` says what a sum may be off; here is what becomes of it, to first order. A row's sums are
shared by at least 32 accumulators; those over all rows may be added one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.sums import BEYOND, EPSILON, FEW, LANES, LARGEST, few_ulps, finite, sum_errors


@dataclass(frozen=True)
class RoundedRows:
    """Rows of float64 values x [..., cols] and what float32 knows of them; statistics keep an axis of one.

    mean, centred, scale   scale = 1 / sqrt(mean of squares of `centred` + eps)
    of_mean                in the unit of x
    of_variance            of the mean of squares, in the unit of its own
    of_scale               relative
    size                   |mean| + |centred|: what is rounded where x * scale - mean * scale is added up
    squares                how large the squares are that a variance is made of, [..., 1]
    takes_the_mean         whether the mean is taken away, which it may be where it is 0
    """

    mean: Any
    centred: Any
    scale: Any
    of_mean: Errors
    of_variance: Errors
    of_scale: Errors
    size: Any
    squares: Any
    takes_the_mean: bool = True

    @property
    def h(self) -> Any:
        """The normalised row, centred * scale."""
        return self.centred * self.scale


def mean_errors(x: Any) -> Errors:
    """Of the mean over the last axis, which stays as an axis of one."""
    count = max(1, x.shape[-1])
    return sum_errors(x).times(1 / count) + few_ulps(finite(x.mean(dim=-1, keepdim=True)).abs(), 1.0, 0.5)


def centred_row(x: Any, eps: float) -> RoundedRows:
    """The mean taken away, as layernorm does: in two passes, or with a mean that is updated (Welford; Chan, Golub and
    LeVeque 1983).

    The variance carries what its sum of squares does, the square of the mean's error (its first order falls out, as
    deviations add up to zero), and of an updated mean, rounded at every step, 2 e |mean| * sqrt(variance / cols) with e
    the relative error of a sum. E[x^2] - E[x]^2 is off by more, and is refused.
    """
    x = finite(x)
    count = max(1, x.shape[-1])
    mean = x.mean(dim=-1, keepdim=True)
    of_mean, centred = mean_errors(x), x - mean
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    length = count / LANES + max(count, 2).bit_length()
    updated = 2 * EPSILON * length**0.5 * mean.abs() * (variance / count).sqrt()
    first = (
        sum_errors(centred * centred).times(1 / count)
        + few_ulps(variance, 2.0, 1.0)
        + Errors(LARGEST * updated, updated)
    )
    of_variance = Errors(first.largest + of_mean.largest**2, first.typical + of_mean.typical**2)
    return RoundedRows(
        mean,
        centred,
        (variance + eps).rsqrt(),
        of_mean,
        of_variance,
        _of_scale(variance + eps, of_variance),
        mean.abs() + centred.abs(),
        4 * (x * x).sum(dim=-1, keepdim=True),
    )


def row_of_squares(x: Any, eps: float) -> RoundedRows:
    """The mean left where it is, as rmsnorm does: squares are positive, so that nothing cancels."""
    x = finite(x)
    count = max(1, x.shape[-1])
    squares = (x * x).mean(dim=-1, keepdim=True)
    of_variance = sum_errors(x * x).times(1 / count) + few_ulps(squares, 2.0, 1.0)
    none = squares.new_zeros(squares.shape)
    return RoundedRows(
        none,
        x,
        (squares + eps).rsqrt(),
        Errors(none, none),
        of_variance,
        _of_scale(squares + eps, of_variance),
        x.abs(),
        (x * x).sum(dim=-1, keepdim=True),
        takes_the_mean=False,
    )


def _of_scale(under_the_root: Any, of_variance: Errors) -> Errors:
    """Half of the relative error under the root; the root itself within two units of its last place (CUDA's
    rsqrt.approx), eps added with one rounding.
    """
    half = of_variance.times(0.5 / under_the_root)
    return half + few_ulps(under_the_root.new_ones(()), 2.5, 1.0)


def where_squares_fit(errors: Errors, squares: Any, reached: Any) -> Errors:
    """`errors` of what a variance leads to; where float32 cannot hold the `squares` that it is made of, whatever
    comes.

    Parts of a row are joined by the squares of their means (Chan, Golub and LeVeque 1983), also of a row with one
    value or of equal ones: inf * 0 is NaN, and 1 / sqrt(inf) is 0.

    reached     what is added up besides
    """
    beyond = BEYOND * (squares > DTYPES["float32"].largest).double()
    largest = errors.largest + beyond
    return Errors(largest, errors.typical, (reached + beyond).expand(largest.shape))


def unscaled_sums(x: Any, g: Any) -> Any:
    """How large the sums of g * x and of g over a row become, [..., 1], where a kernel takes them before it scales the
    row, as PyTorch's do on a CPU.
    """
    return 4 * ((1 + x.abs()) * g.abs()).sum(dim=-1, keepdim=True)


def expanded_gradient(row: RoundedRows, x: Any, weight: Any, dy: Any) -> Any:
    """How large the parts of dx become, [..., cols], where it is made as PyTorch's is on a CPU: dy * scale * weight +
    b * x - b * mean - scale * sum(g), with b = (sum(g) * mean - sum(dy * x * weight)) * scale * scale * scale.
    """
    g, dy, x = finite(weight * dy).abs(), finite(dy).abs(), finite(x).abs()
    total, mean = g.sum(dim=-1, keepdim=True), row.mean.abs()
    parts = ((dy * x).sum(dim=-1, keepdim=True), total * mean, total * row.scale, dy * row.scale)
    b = ((g * x).sum(dim=-1, keepdim=True) + total * mean) * row.scale
    largest = unscaled_sums(x, g)
    for part in (*parts, b, b * row.scale, b * row.scale**2, b * row.scale**2 * row.size):
        largest = largest.maximum(part)
    return largest


def normalised_errors(row: RoundedRows, weight: Any, bias: Any = 0.0) -> Errors:
    """Of h * weight + bias, its three factors multiplied in any order."""
    weight = finite(weight).abs()
    scaled = weight * row.scale
    rounded = few_ulps(scaled * row.size + abs(bias), 2.0, 1.0)
    lost = _flushed(row.h, weight) + _flushed(scaled, row.centred) + _flushed(row.centred * weight, row.scale)
    return row.of_mean.times(scaled) + row.of_scale.times(scaled * row.centred) + rounded + Errors(lost, lost)


def _flushed(product: Any, factor: Any) -> Any:
    """What `factor` makes of what is lost where a product of two is near the smallest float32, below which hardware may
    put 0.
    """
    return 2.0**-125 * factor.abs() * (product.abs() < 2.0**-100)


def gradient_errors(row: RoundedRows, g: Any) -> Errors:
    """Of (g - mean(g) - h * mean(g * h)) * scale, the first mean only where the row's was taken away; g [..., cols] in
    float64, itself rounded once.

    mean(g * h) may be made of the sums of g * x and of g (as PyTorch does on a CPU), which lie as far apart as the mean
    lies from zero.
    """
    g = finite(g)
    count = max(1, g.shape[-1])
    h, size = row.h, row.scale * row.size
    slope = (g * h).mean(dim=-1, keepdim=True).abs()
    level = g.mean(dim=-1, keepdim=True).abs() * float(row.takes_the_mean)
    of_level = mean_errors(g).times(float(row.takes_the_mean))
    of_slope = (
        mean_errors(g * h)
        + of_level.times(row.mean * row.scale)
        + row.of_mean.times(row.scale * level)
        + row.of_scale.times(slope)
    )
    # each product of the sum was rounded, h and its terms with it
    of_slope = of_slope + few_ulps((g * size).square().sum(dim=-1, keepdim=True).sqrt() / count, 3.0, 1.0)
    of_h = row.of_mean.times(row.scale) + row.of_scale.times(h) + few_ulps(size, 2.0, 1.0)
    whole = of_level + of_slope.times(size) + of_h.times(slope) + few_ulps(g.abs() + level + size * slope, 2.0, 1.0)
    lost = lost_below(row, g)
    return (whole + row.of_scale.times(g.abs() + level + h.abs() * slope)).times(row.scale) + Errors(lost, lost)


def lost_below(row: RoundedRows, g: Any) -> Any:
    """What a gradient of a row, as in `gradient_errors`, may lose where a part of it lies below the smallest float32:
    what x is multiplied by, and the cube of the scale that it may be made of (the derivative of a root), where x is
    large.
    """
    g = finite(g)
    products = g.abs() * row.size
    least = products.amin(dim=-1, keepdim=True) if g.shape[-1] else products
    cube, sums = row.scale**3, products.mean(dim=-1, keepdim=True)
    lost = _flushed(g, row.scale) + _flushed(least, cube * row.size)
    return (lost + _flushed(cube * sums, row.size) + _flushed(cube, sums * row.size)).expand(g.shape)


def column_sum_errors(terms: Any, *carried: tuple[Any, Errors]) -> Errors:
    """Of the sum of `terms` [..., cols] over all rows, one after another, and of what rows carry into it: (factor of
    either sign, Errors of a row).
    """
    own = sum_errors(_columns(finite(terms)), lanes=1)
    found = Errors(own.largest[..., 0], own.typical[..., 0])
    for factor, errors in carried:
        largest, typical = (
            _together(_columns((finite(factor) * finite(part)).expand(terms.shape)))
            for part in (errors.largest, errors.typical)
        )
        found = found + Errors(largest, typical)
    return found


def gradient_of_weight(row: RoundedRows, dy: Any) -> Errors:
    """Of sum(dy * h) over all rows; dy * scale is what a row's mean, and what its scale, are multiplied by."""
    dy = finite(dy)
    terms = dy * row.h
    # the roundings of each term have random signs
    sizes = _columns(dy * row.scale * row.size).abs()
    each = few_ulps(sizes.sum(dim=-1) if sizes.shape[-1] <= FEW else sizes.square().sum(dim=-1).sqrt(), 3.0, 1.0)
    lost = _columns(_flushed(dy * row.scale, row.size) + _flushed(dy * row.size, row.scale)).sum(dim=-1)
    return column_sum_errors(terms, (dy * row.scale, row.of_mean), (terms, row.of_scale)) + each + Errors(lost, lost)


def _columns(values: Any) -> Any:
    return values.reshape(-1, values.shape[-1]).T


def _together(errors: Any) -> Any:
    """Of rows' errors, with the signs of their factors: each row's own (the root of the sum of squares), and those of
    one sign in all rows.
    """
    if errors.shape[-1] <= FEW:
        return errors.abs().sum(dim=-1)
    return errors.square().sum(dim=-1).sqrt() + errors.sum(dim=-1).abs()
