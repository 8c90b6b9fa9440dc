"""How the inputs of a call lie in memory, as far as kernels are of different speeds for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

VECTOR_BYTES = 16

Manner = tuple[tuple[str, bool], ...]
"""For each input its layout ("contiguous", "rows", "transposed", "strided") and whether 16-byte loads fit its rows."""


def manner_of(shapes_and_strides: Iterable[tuple[Sequence[int], Sequence[int], int, bool]]) -> Manner:
    """How inputs lie, from (shape, strides in elements, bytes of an element, whether the address is a multiple of 16)
    of each.
    """
    found = []
    for shape, strides, itemsize, aligned in shapes_and_strides:
        layout = layout_word(shape, strides)
        run = shape[-2] if layout == "transposed" else shape[-1] if shape else 1
        steps = [stride for stride, size in zip(strides, shape, strict=True) if stride != 1 and size > 1]
        found.append(
            (
                layout,
                aligned
                and run * itemsize % VECTOR_BYTES == 0
                and all(step * itemsize % VECTOR_BYTES == 0 for step in steps),
            )
        )
    return tuple(found)


def layout_word(shape: Sequence[int], strides: Sequence[int]) -> str:
    """ "contiguous", "rows", "transposed" (the last two axes stored the other way round) or "strided"."""
    step, contiguous = 1, True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        contiguous = contiguous and (size == 1 or stride == step)
        step *= max(1, size)
    if contiguous or not shape:
        return "contiguous"
    if strides[-1] == 1:
        return "rows"
    return "transposed" if len(shape) >= 2 and strides[-2] == 1 else "strided"
