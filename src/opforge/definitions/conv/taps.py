"""What a convolution adds up: one product for each channel and tap of its kernel, the tap moved over the image.

    y[n, f, p, q] = sum over c, r, s of x[n, c, p * stride_h - pad_top + r * dilation_h, …] * w[f, c, r, s]

A tap that lies outside the image adds nothing. On whatever has the methods of a tensor, so no library is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opforge.core.definition.operator import Constraint, Scalar, ScalarValue

STEPS = (
    Scalar(name="stride_h", default=1, about="rows of the image from one output row to the next"),
    Scalar(name="stride_w", default=1, about="columns of the image from one output column to the next"),
    Scalar(name="pad_top", default=0, about="rows of zeros before the image"),
    Scalar(name="pad_bottom", default=0, about="rows of zeros behind it"),
    Scalar(name="pad_left", default=0, about="columns of zeros before the image"),
    Scalar(name="pad_right", default=0, about="columns of zeros behind it"),
    Scalar(name="dilation_h", default=1, about="rows of the image from one tap to the next"),
    Scalar(name="dilation_w", default=1, about="columns of the image from one tap to the next"),
)
"""How a kernel moves over an image. "same" and "valid" padding become such numbers (`steps_of`)."""

OUT_H = "max(0, (height + pad_top + pad_bottom - dilation_h * (kernel_h - 1) - 1) // max(1, stride_h) + 1)"
OUT_W = "max(0, (width + pad_left + pad_right - dilation_w * (kernel_w - 1) - 1) // max(1, stride_w) + 1)"

FITS = (
    Constraint(
        name="steps_go_forward",
        expression="min(stride_h, stride_w) >= 1 and min(dilation_h, dilation_w) >= 1",
        about="strides and dilations are 1 or more",
    ),
    Constraint(
        name="padding_adds",
        expression="min(min(pad_top, pad_bottom), min(pad_left, pad_right)) >= 0",
        about="padding is 0 or more",
    ),
    Constraint(
        name="there_is_something",
        expression="min(kernel_h, kernel_w) >= 1 and min(height, width) >= 1 and min(channels, filters) >= 1 "
        "and groups >= 1",
        about="image and kernel have rows, columns and channels, and there is a filter: only the batch may be empty",
    ),
    Constraint(
        name="kernel_fits_the_image",
        expression="height + pad_top + pad_bottom > dilation_h * (kernel_h - 1) and "
        "width + pad_left + pad_right > dilation_w * (kernel_w - 1)",
        about="the padded image is at least as large as the kernel with its dilation",
    ),
)


class Tap(NamedTuple):
    """One tap of a kernel: where it reads the image, and for which outputs.

    r, s         its row and column in the kernel
    image        slices of the image's rows and columns that it reads, with strides
    result       slices of the output's rows and columns that it adds to
    """

    r: int
    s: int
    image: tuple[slice, slice]
    result: tuple[slice, slice]


def _along(size: int, out: int, stride: int, first: int) -> tuple[slice, slice] | None:
    """Where outputs 0 … out - 1 read at first, first + stride, …: what lies inside of `size`; None where nothing
    does.
    """
    begin = max(0, -(first // stride))
    end = min(out, (size - 1 - first) // stride + 1)
    if end <= begin:
        return None
    at = first + begin * stride
    return slice(at, at + (end - begin - 1) * stride + 1, stride), slice(begin, end)


def taps(
    image: tuple[int, int], kernel: tuple[int, int], out: tuple[int, int], steps: Mapping[str, ScalarValue]
) -> Iterator[Tap]:
    """Every tap that reads the image somewhere; the sizes are rows and columns."""
    for r in range(kernel[0]):
        rows = _along(image[0], out[0], int(steps["stride_h"]), r * int(steps["dilation_h"]) - int(steps["pad_top"]))
        if rows is None:
            continue
        for s in range(kernel[1]):
            columns = _along(
                image[1], out[1], int(steps["stride_w"]), s * int(steps["dilation_w"]) - int(steps["pad_left"])
            )
            if columns is not None:
                yield Tap(r, s, (rows[0], columns[0]), (rows[1], columns[1]))


def out_sizes(image: tuple[int, int], kernel: tuple[int, int], steps: Mapping[str, ScalarValue]) -> tuple[int, int]:
    """Rows and columns of the output."""
    pads = (("pad_top", "pad_bottom"), ("pad_left", "pad_right"))
    return tuple(  # type: ignore[return-value]
        (size + int(steps[before]) + int(steps[behind]) - int(steps[f"dilation_{way}"]) * (taps - 1) - 1)
        // int(steps[f"stride_{way}"])
        + 1
        for way, size, taps, (before, behind) in zip("hw", image, kernel, pads, strict=True)
    )


def convolved(x: Any, w: Any, steps: Mapping[str, ScalarValue]) -> Any:
    """The convolution of x [batch, groups * channels, height, width] with w [groups * filters, channels, kernel_h,
    kernel_w], tap by tap.
    """
    batch, size = x.shape[0], tuple(x.shape[2:])
    channels, kernel = w.shape[1], tuple(w.shape[2:])
    groups = x.shape[1] // channels
    grouped = x.reshape(batch, groups, channels, *size)
    weights = w.reshape(groups, w.shape[0] // groups, channels, *kernel)
    out = out_sizes(size, kernel, steps)
    y = x.new_zeros((batch, groups, weights.shape[1], *out))
    for tap in taps(size, kernel, out, steps):
        seen = grouped[(..., *tap.image)]
        pixels = seen.shape[-2] * seen.shape[-1]
        added = weights[None, ..., tap.r, tap.s] @ seen.reshape(batch, groups, channels, pixels)
        y[(..., *tap.result)] += added.reshape(batch, groups, weights.shape[1], *seen.shape[-2:])
    return y.reshape(batch, w.shape[0], *out)


def patches(x: Any, w: Any, steps: Mapping[str, ScalarValue], groups: int) -> Any:
    """What each output reads: [batch, groups, out_h * out_w, channels * kernel_h * kernel_w], 0 outside of the image.
    x is [batch, groups * channels, height, width].
    """
    batch, size = x.shape[0], tuple(x.shape[2:])
    channels, kernel = w.shape[1], tuple(w.shape[2:])
    out = out_sizes(size, kernel, steps)
    read = x.new_zeros((batch, groups, *out, channels, *kernel))
    grouped = x.reshape(batch, groups, channels, *size)
    for tap in taps(size, kernel, out, steps):
        read[:, :, tap.result[0], tap.result[1], :, tap.r, tap.s] = grouped[(..., *tap.image)].movedim(2, -1)
    return read.flatten(4).flatten(2, 3)


def image_gradient(x: Any, w: Any, dy: Any, steps: Mapping[str, ScalarValue]) -> Any:
    """What the gradient dy of a convolution's output is for its image x, of which only the sizes matter."""
    batch, size = x.shape[0], tuple(x.shape[2:])
    channels, kernel = w.shape[1], tuple(w.shape[2:])
    groups, filters = x.shape[1] // channels, w.shape[0] // (x.shape[1] // channels)
    weights = w.reshape(groups, filters, channels, *kernel).transpose(1, 2)
    grouped = dy.reshape(batch, groups, filters, *dy.shape[2:])
    dx = dy.new_zeros((batch, groups, channels, *size))
    for tap in taps(size, kernel, tuple(dy.shape[2:]), steps):
        seen = grouped[(..., *tap.result)]
        pixels = seen.shape[-2] * seen.shape[-1]
        added = weights[None, ..., tap.r, tap.s] @ seen.reshape(batch, groups, filters, pixels)
        dx[(..., *tap.image)] += added.reshape(batch, groups, channels, *seen.shape[-2:])
    return dx.reshape(x.shape)


def kernel_gradient(x: Any, w: Any, dy: Any, steps: Mapping[str, ScalarValue]) -> Any:
    """What the gradient dy of a convolution's output is for its kernel w, of which only the sizes matter."""
    channels = w.shape[1]
    groups, filters = x.shape[1] // channels, w.shape[0] // (x.shape[1] // channels)
    read = patches(x, w, steps, groups)  # [batch, groups, pixels, terms]
    arrived = dy.reshape(x.shape[0], groups, filters, dy.shape[2] * dy.shape[3])
    return (arrived @ read).sum(dim=0).reshape(w.shape)


def arriving(x: Any, w: Any, dy: Any, steps: Mapping[str, ScalarValue]) -> Any:
    """What the gradient of each pixel of an image adds up: [batch, groups, height * width, filters * kernel_h *
    kernel_w], 0 where a tap has no output over it.
    """
    batch, size = x.shape[0], tuple(x.shape[2:])
    kernel, groups = tuple(w.shape[2:]), x.shape[1] // w.shape[1]
    filters = w.shape[0] // groups
    read = dy.new_zeros((batch, groups, *size, filters, *kernel))
    grouped = dy.reshape(batch, groups, filters, *dy.shape[2:])
    for tap in taps(size, kernel, tuple(dy.shape[2:]), steps):
        read[:, :, tap.image[0], tap.image[1], :, tap.r, tap.s] = grouped[(..., *tap.result)].movedim(2, -1)
    return read.flatten(4).flatten(2, 3)
