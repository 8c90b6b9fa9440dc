"""Shapes as text: `"*lead cols"` is any number of leading axes and one called cols.

A tensor's shape is a row of tokens: an axis name, a `*name` that stands for any number of axes, an integer, or a
product of names and integers (`heads*dim`), which is one axis. One factor that a product leaves open follows from its
size, and is 0 where that is. Kernels never see a variadic axis: it is collapsed into one, so that a kernel for
`"*lead cols"` is written for a matrix. An axis value is an int, the value of a variadic axis a tuple of ints.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from opforge.core.language.errors import UsageError

AxisValue = int | tuple[int, ...]
Axes = Mapping[str, AxisValue]
Shape = tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def tokens(shape: str) -> tuple[str, ...]:
    """The tokens of a shape expression.

    >>> tokens("*lead cols")
    ('*lead', 'cols')
    """
    return tuple(shape.split())


@functools.lru_cache(maxsize=4096)
def factors(token: str) -> tuple[str, ...]:
    """What is multiplied in one token that is not variadic.

    >>> factors("groups*d")
    ('groups', 'd')
    """
    return tuple(token.split("*"))


def axis_names(shape: str) -> tuple[str, ...]:
    """The axis names of a shape expression, integers left out.

    >>> axis_names("*lead groups*d 3")
    ('lead', 'groups', 'd')
    """
    return tuple(
        name
        for token in tokens(shape)
        for name in ((token[1:],) if token.startswith("*") else factors(token))
        if not name.isdigit()
    )


def extents(token: str, axes: Axes) -> Shape:
    """The sizes that one token stands for: several of a variadic axis, one of everything else."""
    if token.startswith("*"):
        value = axes[token[1:]]
        return value if isinstance(value, tuple) else (value,)
    size = 1
    for name in factors(token):
        value = int(name) if name.isdigit() else axes[name]
        size *= math.prod(value) if isinstance(value, tuple) else value
    return (size,)


def full_shape(shape: str, axes: Axes) -> Shape:
    """The sizes a tensor has for these axes.

    >>> full_shape("*lead cols", {"lead": (2, 3), "cols": 5})
    (2, 3, 5)
    >>> full_shape("batch groups*d", {"batch": 2, "groups": 3, "d": 4})
    (2, 12)
    """
    return tuple(size for token in tokens(shape) for size in extents(token, axes))


def collapsed_shape(shape: str, axes: Axes) -> Shape:
    """The sizes a kernel sees: every variadic axis collapsed into one.

    >>> collapsed_shape("*lead cols", {"lead": (2, 3), "cols": 5})
    (6, 5)
    """
    return tuple(math.prod(extents(token, axes)) for token in tokens(shape))


def bind_axes(shapes: Sequence[tuple[str, str, Shape]]) -> dict[str, AxisValue]:
    """The axes that make every `(tensor name, shape expression, sizes)` fit, found by matching the fixed ends first.

    >>> bind_axes([("x", "*lead *tail", (2, 3, 5)), ("bias", "*tail", (3, 5))])
    {'tail': (3, 5), 'lead': (2,)}

    Raises UsageError that names the tensor, the axis and both sizes when they do not fit.
    """
    axes: dict[str, AxisValue] = {}
    products: list[tuple[str, str, int]] = []
    pending = sorted(shapes, key=lambda entry: sum(token.startswith("*") for token in tokens(entry[1])))
    for name, shape, sizes in pending:
        row = tokens(shape)
        free = [token for token in row if token.startswith("*") and token[1:] not in axes]
        if len(free) > 1:
            raise UsageError(
                f"Shape {shape!r} of {name} leaves {' and '.join(free)} open at once; name one of them in another "
                "tensor."
            )
        fixed = len(row) - len(free) - sum(token.startswith("*") and token[1:] in axes for token in row)
        known = sum(
            len(value) for token in row if token.startswith("*") and isinstance(value := axes.get(token[1:]), tuple)
        )
        spare = len(sizes) - fixed - known
        if spare < 0 or (spare > 0 and not free):
            expected = fixed + known
            raise UsageError(
                f"{name} has {len(sizes)} axes {tuple(sizes)}, its shape {shape!r} asks for "
                f"{'at least ' if free else ''}{expected}."
            )
        position = 0
        for token in row:
            if token in free:
                axes[token[1:]] = tuple(sizes[position : position + spare])
                position += spare
                continue
            if "*" in token[1:]:
                products.append((name, token, sizes[position]))
                position += 1
                continue
            wanted: AxisValue | None = int(token) if token.isdigit() else axes.get(token.lstrip("*"))
            if isinstance(wanted, tuple):
                bound: AxisValue = tuple(sizes[position : position + len(wanted)])
                position += len(wanted)
            else:
                bound = sizes[position]
                position += 1
            if wanted is None:
                axes[token] = bound
            elif wanted != bound:
                raise UsageError(
                    f"{name} has {token.lstrip('*')} = {bound}, elsewhere it is {wanted}. Shape asked for: "
                    f"{shape!r}, given: {tuple(sizes)}."
                )
    _solve(products, axes)
    return axes


def _solve(products: list[tuple[str, str, int]], axes: dict[str, AxisValue]) -> None:
    """Add to `axes` what products leave open, one factor of each: (tensor's name, token, size). Raises UsageError where
    a size is no such product, or two factors are open at once.
    """
    while products:
        opened = [
            (name, token, size, [factor for factor in factors(token) if not factor.isdigit() and factor not in axes])
            for name, token, size in products
        ]
        name, token, size, missing = min(opened, key=lambda item: len(item[3]))
        if len(set(missing)) > 1:
            raise UsageError(
                f"{token} of {name} leaves {' and '.join(missing)} open at once; name one of them in another tensor."
            )
        rest = math.prod(extents("*".join(factor for factor in factors(token) if factor not in missing) or "1", axes))
        found, power = size, len(missing)
        if power:
            found = round((size / rest) ** (1 / power)) if rest else 0
            axes[missing[0]] = found
        if extents(token, axes) != (size,):
            given = ", ".join(f"{factor} = {axes[factor]}" for factor in factors(token) if not factor.isdigit())
            raise UsageError(f"{name} has {size} where its shape says {token}, and that is no such product ({given}).")
        products.remove((name, token, size))


def shape_class(axes: Axes) -> tuple[tuple[str, int], ...]:
    """The class that tuned choices are kept by: each axis by the power of two that covers it.

    >>> shape_class({"lead": (4, 8), "cols": 1000})
    (('cols', 10), ('lead', 5))
    """
    sizes = {name: math.prod(value) if isinstance(value, tuple) else value for name, value in axes.items()}
    return tuple(sorted((name, max(0, size - 1).bit_length()) for name, size in sizes.items()))
