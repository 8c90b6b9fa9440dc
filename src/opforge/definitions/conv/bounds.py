"""How far a convolution in float32 may be off: a sum of channels * kernel_h * kernel_w products for each output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.activation import activated, slope
from opforge.definitions.bounds.sums import BEYOND, few_ulps, finite
from opforge.definitions.conv.taps import arriving, out_sizes, patches, taps
from opforge.definitions.precision import matrix_errors

TOGETHER = 1 << 23
"""Elements of patches that are looked at together: 64 MB in float64."""


def conv_errors(x: Any, w: Any, bias: Any, scalars: Mapping[str, ScalarValue], dtype: str) -> Errors:
    """Of a convolution, with a bias that its sums may begin with (None without one)."""
    groups, filters = x.shape[1] // w.shape[1], w.shape[0] // (x.shape[1] // w.shape[1])
    out = out_sizes(tuple(x.shape[2:]), tuple(w.shape[2:]), scalars)
    shape = (x.shape[0], w.shape[0], *out)
    largest, typical, reached = (x.new_zeros(shape) for _ in range(3))
    factors = finite(w).reshape(groups, filters, -1).transpose(-1, -2)
    start = 0.0 if bias is None else finite(bias).reshape(groups, 1, filters)
    for images, rows, strip, moved in _strips(finite(x), w, out, scalars):
        found = matrix_errors(patches(strip, w, moved, groups), factors, str(scalars["precision"]), dtype, start=start)
        for whole, part in ((largest, found.largest), (typical, found.typical), (reached, found.reached)):
            # [images, groups, pixels, filters]
            lines = part.transpose(-1, -2).reshape(strip.shape[0], w.shape[0], rows.stop - rows.start, out[1])
            whole[images, :, rows] = lines
    return Errors(largest, typical, reached.maximum(_padded_infinities(x, w, out, scalars)))


def activated_errors(z: Any, sums: Errors, residual: Any, activation: str) -> Errors:
    """Of activation(z), where z is a convolution with errors of its own, and a residual (None without one)."""
    if residual is not None:
        sums = sums + few_ulps(finite(residual).abs() + finite(z).abs(), 1.0, 0.5)
    steep = slope(z, activation)
    if activation == "relu":
        # what is below 0 by less than its error may come out above
        steep = (z > -sums.largest).to(z)
    found = sums.times(finite(steep)) + few_ulps(finite(activated(z, activation)).abs(), 6.0, 3.0)
    if activation == "gelu":
        # z/2 and z/2 * erf cancel for negative z: what remains carries the error of both
        found = found + few_ulps(finite(z).abs(), 6.0, 3.0)
    if activation == "silu":
        # below z = -87.3 the sigmoid is smaller than the least normal number, and may be 0: then 1e-36 is lost
        found = found + Errors(1.5e-36, 1.5e-36)
    return found


def image_gradient_errors(x: Any, w: Any, dy: Any, scalars: Mapping[str, ScalarValue], dtype: str) -> Errors:
    """Of the gradient of an image: a sum of filters * kernel_h * kernel_w products for each pixel."""
    channels, groups = w.shape[1], x.shape[1] // w.shape[1]
    factors = finite(w).reshape(groups, -1, channels, *w.shape[2:]).transpose(1, 2)
    factors = factors.reshape(groups, channels, -1).transpose(-1, -2)
    found = matrix_errors(arriving(x, w, finite(dy), scalars), factors, str(scalars["precision"]), dtype)
    return Errors(*(part.transpose(-1, -2).reshape(x.shape) for part in (found.largest, found.typical, found.reached)))


def kernel_gradient_errors(x: Any, w: Any, dy: Any, scalars: Mapping[str, ScalarValue], dtype: str) -> Errors:
    """Of the gradient of a kernel: a sum of batch * out_h * out_w products for each weight."""
    batch, channels = x.shape[0], w.shape[1]
    groups = x.shape[1] // channels
    read = patches(finite(x), w, scalars, groups).transpose(0, 1).flatten(1, 2)  # [groups, batch * pixels, terms]
    arrived = finite(dy).reshape(batch, groups, w.shape[0] // groups, -1) if batch else dy.reshape(0, groups, 1, 1)
    arrived = arrived.permute(1, 2, 0, 3).flatten(2)
    if not batch:
        return Errors(w.new_zeros(w.shape), w.new_zeros(w.shape), w.new_zeros(w.shape))
    found = matrix_errors(arrived, read, str(scalars["precision"]), dtype)
    return Errors(*(part.reshape(w.shape) for part in (found.largest, found.typical, found.reached)))


def _strips(
    x: Any, w: Any, out: tuple[int, int], scalars: Mapping[str, ScalarValue]
) -> Iterator[tuple[slice, slice, Any, dict[str, ScalarValue]]]:
    """Images and output rows with so many patches as are looked at together: which, the rows of the images that they
    read, and how the kernel moves over those.
    """
    if not x.shape[0] * out[0] * out[1]:
        return
    stride, dilation, before = (int(scalars[name]) for name in ("stride_h", "dilation_h", "pad_top"))
    line = max(1, out[1] * x.shape[1] * w.shape[2] * w.shape[3])
    height = max(1, min(out[0], TOGETHER // line))
    many = max(1, TOGETHER // (line * height))
    for image in range(0, x.shape[0], many):
        for first in range(0, out[0], height):
            last = min(out[0], first + height)
            begin = first * stride - before
            end = (last - 1) * stride - before + dilation * (w.shape[2] - 1) + 1
            inside = slice(min(max(0, begin), x.shape[2]), max(0, min(end, x.shape[2])))
            if inside.stop <= inside.start:
                inside = slice(0, 0)
                above = end - begin
            else:
                above = max(0, -begin)
            below = end - begin - above - (inside.stop - inside.start)
            moved = {**scalars, "pad_top": above, "pad_bottom": below}
            images = slice(image, min(x.shape[0], image + many))
            yield images, slice(first, last), x[images, :, inside], moved


def _padded_infinities(x: Any, w: Any, out: tuple[int, int], scalars: Mapping[str, ScalarValue]) -> Any:
    """Without bound where an infinite or NaN weight lies over the padding: a kernel may multiply it with 0, which is
    NaN, or leave it out.
    """
    strange = ~w.isfinite()
    if not bool(strange.any()):
        return x.new_zeros(())
    over = strange.any(dim=1)  # [filters, kernel_h, kernel_w]
    read = x.new_zeros((*w.shape[2:], *out))
    for tap in taps(tuple(x.shape[2:]), tuple(w.shape[2:]), out, scalars):
        read[tap.r, tap.s][tap.result] = 1.0
    outside = 1.0 - read
    found = over.flatten(1).to(x.dtype) @ outside.reshape(over[0].numel(), -1)
    return BEYOND * (found > 0).to(x.dtype).reshape(w.shape[0], *out)
