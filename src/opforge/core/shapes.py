"""Shapes as text: `"*lead cols"` is any number of leading axes and one called cols.

A tensor's shape is a row of tokens: an axis name, a `*name` that stands for any number of axes, or an integer.
Kernels never see a variadic axis: it is collapsed into one, so that a kernel for `"*lead cols"` is written for a
matrix. An axis value is an int, the value of a variadic axis a tuple of ints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from opforge.core.errors import UsageError

AxisValue = int | tuple[int, ...]
Axes = Mapping[str, AxisValue]
Shape = tuple[int, ...]


def tokens(shape: str) -> tuple[str, ...]:
    """The tokens of a shape expression.

    >>> tokens("*lead cols")
    ('*lead', 'cols')
    """
    return tuple(shape.split())


def axis_names(shape: str) -> tuple[str, ...]:
    """The axis names of a shape expression, integers left out."""
    return tuple(token.lstrip("*") for token in tokens(shape) if not token.isdigit())


def full_shape(shape: str, axes: Axes) -> Shape:
    """The sizes a tensor has for these axes.

    >>> full_shape("*lead cols", {"lead": (2, 3), "cols": 5})
    (2, 3, 5)
    """
    sizes: list[int] = []
    for token in tokens(shape):
        if token.isdigit():
            sizes.append(int(token))
            continue
        value = axes[token.lstrip("*")]
        sizes.extend(value if isinstance(value, tuple) else (value,))
    return tuple(sizes)


def collapsed_shape(shape: str, axes: Axes) -> Shape:
    """The sizes a kernel sees: every variadic axis collapsed into one.

    >>> collapsed_shape("*lead cols", {"lead": (2, 3), "cols": 5})
    (6, 5)
    """
    sizes: list[int] = []
    for token in tokens(shape):
        if token.isdigit():
            sizes.append(int(token))
        else:
            value = axes[token.lstrip("*")]
            sizes.append(math.prod(value) if isinstance(value, tuple) else value)
    return tuple(sizes)


def bind_axes(shapes: Sequence[tuple[str, str, Shape]]) -> dict[str, AxisValue]:
    """The axes that make every `(tensor name, shape expression, sizes)` fit, found by matching the fixed ends first.

    >>> bind_axes([("x", "*lead *tail", (2, 3, 5)), ("bias", "*tail", (3, 5))])
    {'tail': (3, 5), 'lead': (2,)}

    Raises UsageError that names the tensor, the axis and both sizes when they do not fit.
    """
    axes: dict[str, AxisValue] = {}
    pending = sorted(shapes, key=lambda entry: sum(token.startswith("*") for token in tokens(entry[1])))
    for name, shape, sizes in pending:
        row = tokens(shape)
        free = [token for token in row if token.startswith("*") and token[1:] not in axes]
        if len(free) > 1:
            raise UsageError(f"Shape {shape!r} of {name} leaves {' and '.join(free)} open at once; name one of them in another tensor.")
        fixed = len(row) - len(free) - sum(token.startswith("*") and token[1:] in axes for token in row)
        known = sum(len(value) for token in row if token.startswith("*") and isinstance(value := axes.get(token[1:]), tuple))
        spare = len(sizes) - fixed - known
        if spare < 0 or (spare > 0 and not free):
            expected = fixed + known
            raise UsageError(f"{name} has {len(sizes)} axes {tuple(sizes)}, its shape {shape!r} asks for {'at least ' if free else ''}{expected}.")
        position = 0
        for token in row:
            if token in free:
                axes[token[1:]] = tuple(sizes[position : position + spare])
                position += spare
                continue
            wanted: AxisValue | None = int(token) if token.isdigit() else axes.get(token.lstrip("*"))
            if isinstance(wanted, tuple):
                found: AxisValue = tuple(sizes[position : position + len(wanted)])
                position += len(wanted)
            else:
                found = sizes[position]
                position += 1
            if wanted is None:
                axes[token] = found
            elif wanted != found:
                raise UsageError(f"{name} has {token.lstrip('*')} = {found}, elsewhere it is {wanted}. Shape asked for: {shape!r}, given: {tuple(sizes)}.")
    return axes
