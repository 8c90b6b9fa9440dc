"""How long an implementation would take for a call that nobody timed: told from the times that are believed.

A time is looked at as how far it is from the least that the device allows for that work (bytes over bandwidth or
operations over peak, and a launch). That share changes slowly with the sizes, where the kernel does not change its
plan: so of an implementation the nearest times are taken, each weighed by how alike the calls are, and their shares
averaged in logarithms. Calls are alike in the octaves between their axes (the one that is contiguous counts most), in
how their inputs lie (layout, and whether 16-byte loads fit), in the dtype, and in the ranges that the implementation
declares for itself (`BEST`): beyond the end of such a range it has another plan, and times from there say little.

`pick` is what a call gets (dispatch) and what `opforge recommend` says: one model for both. Its constants were chosen
on the records of an H200 and checked on shapes that are in no record; scripts/choices.py and `make tuning` print both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.device import DeviceSpec
from opforge.core.dtypes import DTYPES
from opforge.core.expr import evaluate
from opforge.core.implementation import COMPARED_AS_IS, Config, Implementation
from opforge.core.operator import Operator, ScalarValue
from opforge.core.shapes import Axes, axis_names, tokens

BESIDE = 0.5
"""What an octave of an axis counts that is not contiguous: twice as many rows are the same work twice over."""
SAME_WIDTH = 1.0
"""Octaves that another dtype of the same size is away (float16 for bfloat16)."""
OTHER_LAYOUT, OTHER_ALIGNMENT = 2.0, 2.0
"""Octaves that an input is away which lies otherwise, or which 16-byte loads fit where they did not."""
OTHER_RANGE = 3.0
"""Octaves between the inside and the outside of a range that an implementation declares as its own."""
SOFTENING = 0.05
"""Added to squared octaves: a time of the very call decides alone, two near ones share."""
FORGETTING = 3.0
"""A time from two octaves away in layout counts as much as one of the same layout four octaves away in size."""
CAUTIOUS = 2.0
"""Octaves after which caution grows no more."""
DOUBT = 0.02
"""Logarithm of time added for each octave to the nearest time: of two that seem equal the better known is taken."""
OUTSIDE = math.log(1.15)
"""Added outside the declared ranges, where no time from there says otherwise."""
LAUNCH_S = 2e-6
"""Added to the least time of every call, so that small ones are not all launch."""
FALLBACK_BYTES_PER_S, FALLBACK_FLOPS_PER_S = 1e10, 1e11
"""For devices without any rate: only the ratio matters, and that of a CPU core is near this."""
VECTOR_BYTES = 16


@dataclass(frozen=True)
class Weights:
    """What the model was fitted with. scripts/tuning_recommend.py chooses them on some operators and tests on others.

    nearest      times of an implementation that are averaged: two on each side of a size
    other_width  octaves that another dtype of another size is away
    caution      logarithm of time added to our own kernels for each octave beyond the first to their nearest time,
                 CAUTIOUS octaves at most: PyTorch's choices were made for every shape, so a kernel that was timed far
                 away must promise more. Without it PyTorch is faster by more than 3 % in 3 of 237 calls that are left
                 out and in 2 of 40 shapes that are in no record; with it in none
    """

    nearest: int = 4
    other_width: float = 1.25
    caution: float = 0.03


WEIGHTS = Weights()


Manner = tuple[tuple[str, bool], ...]
"""For each input its layout ("contiguous", "rows", "transposed", "strided") and whether 16-byte loads fit its rows."""


@dataclass(frozen=True)
class Place:
    """Where a call stands among others.

    octaves   log2 of each axis
    least_s   the least seconds that the device allows for the work
    """

    octaves: Mapping[str, float]
    manner: Manner
    dtype: str
    least_s: float
    names: Mapping[str, Any]


@dataclass(frozen=True)
class TimedCall:
    """A time that is believed. `what` says which one it is, for people."""

    implementation: str
    config: Config
    place: Place
    seconds: float
    what: str


@dataclass(frozen=True)
class Guess:
    """What an implementation is expected to take: seconds, with the config of the nearest time, `octaves` away from the
    call.
    """

    seconds: float
    nearest: TimedCall
    octaves: float


def place_of(
    operator: Operator, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue], manner: Manner, device: DeviceSpec
) -> Place:
    """The Place of a call."""
    cost = operator.cost(axes, dtype, scalars)
    form = operator.compute_dtype_of(dtype, scalars)
    bandwidth = device.nominal_bytes_per_s or _rate(device, "copy") or FALLBACK_BYTES_PER_S
    # arithmetic of vectors is float32 where a sheet says nothing of the dtype
    names = (form,) if operator.unit == "matrix" else (f"vector_{form}", "vector_float32")
    peak = (
        next((rate for name in names if (rate := device.nominal_flops_per_s.get(name))), 0.0)
        or _rate(device, f"matrix_{form}" if operator.unit == "matrix" else "vector_float32")
        # of a sheet that says the bandwidth alone, the bandwidth is the bound
        or (math.inf if device.nominal_bytes_per_s else FALLBACK_FLOPS_PER_S)
    )
    least_s = max(cost.bytes / bandwidth, cost.flops / peak) + LAUNCH_S
    sizes = {
        name: math.log2(max(1, math.prod(value) if isinstance(value, tuple) else value)) for name, value in axes.items()
    }
    return Place(
        sizes,
        manner,
        dtype,
        least_s,
        {**axes, **operator.scalar_values(scalars), "dtype": dtype, "itemsize": DTYPES[dtype].itemsize},
    )


def tells(operator: Operator, dtype: str, scalars: Mapping[str, ScalarValue], wanted: str, form: str) -> bool:
    """Whether a time in `dtype` says anything of a call in `wanted` that multiplies in `form`. Units for products have
    rates of their own for each
    format; other work in another dtype is other traffic, and that is in the least time."""
    if dtype == wanted:
        return operator.compute_dtype_of(dtype, scalars) == form
    return operator.unit != "matrix" or DTYPES[dtype].itemsize == DTYPES[wanted].itemsize


def _rate(device: DeviceSpec, name: str) -> float:
    ceiling = device.ceiling(name)
    return ceiling.value if ceiling else 0.0


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


class Model:
    """Times of one operator on one device, and what they say of calls that are not among them."""

    def __init__(
        self,
        operator: Operator,
        implementations: Iterable[Implementation],
        seen: Iterable[TimedCall],
        weights: Weights = WEIGHTS,
    ) -> None:
        self.weights = weights
        implementations = list(implementations)
        self._cautious = {item.name for item in implementations if item.backend not in COMPARED_AS_IS}
        first = tokens(operator.inputs[0].shape) if operator.inputs else []
        wide = {
            name
            for token in (first if operator.unit == "matrix" else first[-1:])
            if not token.startswith("*") or operator.unit != "matrix"
            for name in axis_names(token)
        }
        if operator.unit == "matrix":
            words = (token for spec in operator.inputs for token in tokens(spec.shape) if not token.startswith("*"))
            wide |= {name for token in words for name in axis_names(token)}
        self._weights = {name: 1.0 if name in wide else BESIDE for name in operator.axes}
        self._best = {item.name: tuple(item.best.values()) for item in implementations}
        self._seen: dict[str, list[TimedCall]] = {}
        # of several configs at one place the fastest is what a call would be given
        fastest: dict[tuple[str, int], TimedCall] = {}
        for item in seen:
            known = fastest.get((item.implementation, id(item.place)))
            if known is None or item.seconds < known.seconds:
                fastest[item.implementation, id(item.place)] = item
        for item in fastest.values():
            self._seen.setdefault(item.implementation, []).append(item)

    def knows(self, implementation: str) -> bool:
        """Whether any time of it is known."""
        return bool(self._seen.get(implementation))

    def inside(self, implementation: str, place: Place) -> bool:
        """Whether a call is in the ranges that an implementation declares as its own."""
        return all(evaluate(expression, place.names) for expression in self._best.get(implementation, ()))

    def octaves(self, one: Place, other: Place) -> float:
        """How far the sizes of two calls are apart, whoever computes them."""
        return math.sqrt(
            sum(
                (self._weights.get(name, BESIDE) * (value - other.octaves.get(name, 0.0))) ** 2
                for name, value in one.octaves.items()
            )
        )

    def otherness(self, one: Place, other: Place) -> float:
        """How far they are apart in all else: dtype, layouts, alignment, in octaves."""
        distance = 0.0
        if one.dtype != other.dtype:
            one_size = DTYPES[one.dtype].itemsize == DTYPES[other.dtype].itemsize
            distance += SAME_WIDTH if one_size else self.weights.other_width
        if one.manner != other.manner:
            pairs = list(zip(one.manner, other.manner, strict=False))
            distance += OTHER_LAYOUT * sum(a[0] != b[0] for a, b in pairs) + OTHER_ALIGNMENT * any(
                a[1] != b[1] for a, b in pairs
            )
        return distance

    def guess(self, implementation: str, place: Place) -> Guess | None:
        """What an implementation is expected to take for a call; None where no time of it is known."""
        known = self._seen.get(implementation)
        if not known:
            return None
        here = self.inside(implementation, place)
        weighed = []
        for order, item in enumerate(known):
            size, other = (
                self.octaves(place, item.place),
                self.otherness(place, item.place)
                + (OTHER_RANGE if self.inside(implementation, item.place) != here else 0.0),
            )
            # what is other is other at every size: it makes a time count less, and of times that are all other the
            # nearest size still decides
            weighed.append((math.exp(-FORGETTING * other) / (size * size + SOFTENING), order, size + other))
        near = sorted(weighed, reverse=True)[: self.weights.nearest]
        total = sum(weight for weight, _, _ in near)
        share = (
            sum(weight * math.log(known[order].seconds / known[order].place.least_s) for weight, order, _ in near)
            / total
        )
        _, order, octaves = near[0]
        unknown_range = 0.0 if here else OUTSIDE * min(1.0, octaves / OTHER_RANGE)
        doubt = DOUBT * octaves + unknown_range
        if implementation in self._cautious:
            doubt += self.weights.caution * min(CAUTIOUS, max(0.0, octaves - 1.0))
        return Guess(place.least_s * math.exp(share + doubt), known[order], octaves)


@dataclass(frozen=True)
class Picked:
    """What was picked from several implementations; `guess` is None where no time told. `words` say why."""

    implementation: Implementation
    guess: Guess | None
    words: str


TIE = 0.01
"""Share of a time within which two are one: what is listed first is taken, as it is when nothing is known."""


def pick(model: Model, fit: Sequence[Implementation], place: Place) -> Picked:
    """The implementation with the least guess; of equals the first. Those without any time are picked where none has
    one: the first that declares
    itself made for the call, else the first. `fit` is in order of preference and not empty."""
    guesses = [(item, guess) for item in fit if (guess := model.guess(item.name, place)) is not None]
    if not guesses:
        first = next((item for item in fit if item.backend != "torch" and model.inside(item.name, place)), fit[0])
        return Picked(
            first, None, "nothing was timed that tells; the first in the operator's order that is made for such a call"
        )
    least = min(guess.seconds for _, guess in guesses)
    item, guess = next((item, guess) for item, guess in guesses if guess.seconds <= least * (1 + TIE))
    reason = f"{guess.seconds * 1e6:.3g} us expected from {guess.nearest.what}"
    others = sorted((other.seconds, one.name) for one, other in guesses if one is not item)
    if others:
        reason += f"; next {others[0][1]} {others[0][0] * 1e6:.3g} us"
    return Picked(item, guess, reason)
