"""How long an implementation would take for a call that nobody timed: told from the times that are believed.

A time is looked at as how far it is from the least that the device allows for that work (bytes over bandwidth or
operations over peak, and a launch). That share changes slowly with the sizes, where the kernel does not change its
plan: so of an implementation the nearest times are taken, each weighed by how alike the calls are, and their shares
averaged in logarithms. Calls are alike in the octaves between their axes (the one that is contiguous counts most), in
how their inputs lie (layout, and whether 16-byte loads fit), in the dtype, and in the ranges that the implementation
declares for itself (`BEST`): beyond the end of such a range it has another plan, which takes longer.
A call in a row takes no less than the host takes to launch it: where that is long (`TimedCall.launch_s`) it is the
least that is guessed.

Times of a sibling, another device for which compilers make the same code (an H100 beside an H200), tell how the share
changes from call to call; one's own times tell how far the sibling's shares are off here. So where both are known and
the sibling's time is the nearer one, its share of the call is taken, and the nearest differences between own and
sibling shares are added.

`pick` is what a call gets (dispatch) and what `opforge recommend` says: one model for both. Its constants were chosen
on the records of an H200 and checked on shapes that are in no record; scripts/choices.py and `make tuning` print both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import COMPARED_AS_IS, Config, Implementation
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.definition.shapes import Axes, axis_names, tokens
from opforge.core.language.expr import evaluate
from opforge.roofline.manners import Manner

BESIDE = 0.5
"""What an octave of an axis counts that is not contiguous: twice as many rows are the same work twice over."""
SAME_WIDTH = 1.0
"""Octaves that another dtype of the same size is away (float16 for bfloat16)."""
OTHER_LAYOUT, OTHER_ALIGNMENT = 2.0, 2.0
"""Octaves that an input is away which lies otherwise, or which 16-byte loads fit where they did not."""
OUTSIDE = math.log(2.0)
"""What a share is more outside the ranges that an implementation declares for itself, where its times are from inside;
and less inside, where they are from outside. Of the records' kernels it is 1.1 to 7 times."""
UNKNOWN = 6.0
"""Octaves from the nearest time of any implementation beyond which guesses tell little: one that has no time, and
declares itself made for the call, is taken before them."""
SOFTENING = 0.05
"""Added to squared octaves: a time of the very call decides alone, two near ones share."""
FORGETTING = 3.0
"""A time from two octaves away in layout counts as much as one of the same layout four octaves away in size."""
NEAR = 1.0
"""Octaves to the nearest time up to which a guess is as good as a time."""
CAUTIOUS = 2.0
"""Octaves after which caution grows no more."""
DOUBT = 0.02
"""Logarithm of time added for each octave to the nearest time: of two that seem equal the better known is taken."""
LAUNCH_S = 2e-6
"""Added to the least time of every call, so that small ones are not all launch."""
FALLBACK_BYTES_PER_S, FALLBACK_FLOPS_PER_S = 1e10, 1e11
"""For devices without any rate: only the ratio matters, and that of a CPU core is near this."""
SIBLING = 0.5
"""Octaves added to a time of a sibling device, where it is asked how far the nearest time is."""
POOLED = 0.25
"""What the differences of the other implementations weigh beside one's own: as one time two octaves away."""


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
    """A time that is believed. `what` says which one it is, for people. `place` is on the device that it was taken
    on. `launch_s`: by the host's launches a call in a row takes no less than that (core.evidence.timing.long_launch_s).
    """

    implementation: str
    config: Config
    place: Place
    seconds: float
    what: str
    launch_s: float = 0.0

    @property
    def in_a_row_s(self) -> float:
        """Seconds of a call among others that follow each other at once."""
        return max(self.seconds, self.launch_s)


@dataclass(frozen=True)
class Guess:
    """What an implementation is expected to take: seconds, with the nearest time of this device and that of a sibling,
    where one was looked at. The nearer of both is `octaves` away from the call.
    """

    seconds: float
    nearest: TimedCall | None
    octaves: float
    sibling: TimedCall | None = None

    @property
    def told_by(self) -> TimedCall:
        """The nearest time: of this device where it has any, else of a sibling."""
        found = self.nearest or self.sibling
        assert found is not None
        return found

    @property
    def words(self) -> str:
        """Which times told it."""
        return " and ".join(item.what for item in (self.nearest, self.sibling) if item is not None)


@dataclass(frozen=True)
class _Near:
    """What times of one implementation on one device say of a call: their mean share as a logarithm, what they weigh
    together, the nearest of them and how far it is.
    """

    share: float
    weight: float
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


class Model:
    """Times of one operator on one device, and what they say of calls that are not among them.

    seen       times of the device
    siblings   times of other devices that run the same code; where there are none of either, those that
               implementations of the same names have in other operators of the family
    """

    def __init__(
        self,
        operator: Operator,
        implementations: Iterable[Implementation],
        seen: Iterable[TimedCall],
        weights: Weights = WEIGHTS,
        siblings: Iterable[TimedCall] = (),
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
        self._seen = _fastest_configs(seen)
        self._siblings = _fastest_configs(siblings)
        self._differences: dict[int, float] = {}
        self._of_place: tuple[Place | None, dict[str, tuple[float, float]]] = (None, {})
        self._insides: dict[int, bool] = {}
        self._apart: tuple[Place | None, dict[int, tuple[float, float]]] = (None, {})

    def knows(self, implementation: str) -> bool:
        """Whether any time of it is known."""
        return bool(self._seen.get(implementation) or self._siblings.get(implementation))

    def inside(self, implementation: str, place: Place) -> bool:
        """Whether a call is in the ranges that an implementation declares as its own."""
        return all(evaluate(expression, place.names) for expression in self._best.get(implementation, ()))

    def made_for(self, implementation: str, place: Place) -> bool:
        """Whether an implementation declares ranges as its own, and a call is in all of them."""
        return bool(self._best.get(implementation)) and self.inside(implementation, place)

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
        own = self._near(implementation, place, self._seen)
        there = self._there(implementation, place)
        own_octaves = own.octaves if own is not None else math.inf
        there_octaves = there.octaves + SIBLING if there is not None else math.inf
        nearest = min(own_octaves, there_octaves)
        # a sibling timed farther away than this device has less to say of the call than own times have
        if there is not None and there_octaves <= own_octaves:
            expected = there.share + self._difference(implementation, place)
        elif own is not None:
            expected, there = own.share, None
        else:
            return None
        doubt = DOUBT * nearest
        if implementation in self._cautious:
            doubt += self.weights.caution * min(CAUTIOUS, max(0.0, nearest - NEAR))
        seconds = place.least_s * math.exp(expected + doubt)
        # a launch takes the host as long whatever the sizes are
        told_by = own.nearest if own is not None else there.nearest if there is not None else None
        seconds = max(seconds, told_by.launch_s if told_by is not None else 0.0)
        return Guess(seconds, own.nearest if own else None, nearest, there.nearest if there else None)

    def _nearest(
        self, implementation: str, place: Place, known: Mapping[str, list[TimedCall]]
    ) -> list[tuple[float, float, TimedCall]]:
        """The nearest times of an implementation: what each weighs, how many octaves away it is."""
        weighed = []
        for order, item in enumerate(known.get(implementation, ())):
            size, other = self._apart_from(place, item.place)
            # what is other is other at every size: it makes a time count less, and of times that are all other the
            # nearest size still decides
            weighed.append((math.exp(-FORGETTING * other) / (size * size + SOFTENING), order, size + other, item))
        near = sorted(weighed, key=lambda each: each[:2], reverse=True)[: self.weights.nearest]
        return [(weight, octaves, item) for weight, _, octaves, item in near]

    def _apart_from(self, place: Place, theirs: Place) -> tuple[float, float]:
        """`octaves` and `otherness` of a call and a timed one: all implementations that were timed there share them."""
        if self._apart[0] is not place:
            self._apart = (place, {})
        known = self._apart[1]
        if id(theirs) not in known:
            known[id(theirs)] = self.octaves(place, theirs), self.otherness(place, theirs)
        return known[id(theirs)]

    def _near(self, implementation: str, place: Place, known: Mapping[str, list[TimedCall]]) -> _Near | None:
        near = self._nearest(implementation, place, known)
        if not near:
            return None
        total = sum(weight for weight, _, _ in near)
        mean = (
            sum(
                weight * (share(item) + self.of_size(item, place) + self._of_range(item, place))
                for weight, _, item in near
            )
            / total
        )
        return _Near(mean, total, near[0][2], near[0][1])

    def _of_range(self, item: TimedCall, place: Place) -> float:
        """What a time's share is more for a call on the other side of a declared range, as a logarithm."""
        return OUTSIDE * (int(self._inside_then(item)) - int(self.inside(item.implementation, place)))

    def of_size(self, item: TimedCall, place: Place) -> float:
        """What a time's share is more in the dtype of a call, as a logarithm: nothing, by these times alone."""
        return 0.0

    def _there(self, implementation: str, place: Place) -> _Near | None:
        """What siblings' times say of a call. That of the very call decides alone: what it is off by here is told by
        differences, and averaged with its neighbours it would be off from the start.
        """
        near = self._near(implementation, place, self._siblings)
        if near is None or near.octaves:
            return near
        return _Near(share(near.nearest), near.weight, near.nearest, 0.0)

    def _difference(self, implementation: str, place: Place) -> float:
        """What is added to a sibling's share of a call, as a logarithm: how far the sibling's shares are off at the
        nearest own times, those of the other implementations as one more.
        """
        if self._of_place[0] is not place:
            self._of_place = (place, {name: self._own_difference(name, place) for name in self._seen})
        of_place = self._of_place[1]
        weight, mean = of_place.get(implementation, (0.0, 0.0))
        others = [difference for name, difference in of_place.items() if name != implementation]
        far = sum(each for each, _ in others)
        pooled = sum(each * value for each, value in others) / far if far else mean
        return (weight * mean + POOLED * pooled) / (weight + POOLED)

    def _own_difference(self, implementation: str, place: Place) -> tuple[float, float]:
        """The weight and the mean of an implementation's differences near a call; 0 and 0 where it has none."""
        if not self._siblings.get(implementation):
            return 0.0, 0.0
        near = self._nearest(implementation, place, self._seen)
        total = sum(weight for weight, _, _ in near)
        return total, sum(weight * self._difference_at(item) for weight, _, item in near) / total if near else 0.0

    def _inside_then(self, item: TimedCall) -> bool:
        if id(item) not in self._insides:
            self._insides[id(item)] = self.inside(item.implementation, item.place)
        return self._insides[id(item)]

    def _difference_at(self, item: TimedCall) -> float:
        if id(item) not in self._differences:
            there = self._there(item.implementation, item.place)
            self._differences[id(item)] = share(item) - there.share if there is not None else 0.0
        return self._differences[id(item)]


def share(item: TimedCall) -> float:
    """The logarithm of how many times its least time a call took."""
    return math.log(item.seconds / item.place.least_s)


def _fastest_configs(timed: Iterable[TimedCall]) -> dict[str, list[TimedCall]]:
    """Times by implementation. Of several configs at one place the fastest is what a call would be given."""
    fastest: dict[tuple[str, int], TimedCall] = {}
    for item in timed:
        known = fastest.get((item.implementation, id(item.place)))
        if known is None or (item.in_a_row_s, item.seconds) < (known.in_a_row_s, known.seconds):
            fastest[item.implementation, id(item.place)] = item
    kept: dict[str, list[TimedCall]] = {}
    for item in fastest.values():
        kept.setdefault(item.implementation, []).append(item)
    return kept


@dataclass(frozen=True)
class Picked:
    """What was picked from several implementations; `guess` is None where no time told. `words` say why."""

    implementation: Implementation
    guess: Guess | None
    words: str


TIE = 0.01
"""Share of a time within which two are one: what is listed first is taken, as it is when nothing is known; beyond NEAR
PyTorch where it is the faster."""


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
    untimed = [item for item in fit if not model.knows(item.name) and model.made_for(item.name, place)]
    if untimed and min(guess.octaves for _, guess in guesses) > UNKNOWN:
        return Picked(
            untimed[0], None, "every time known is of a call far from this one, and it is made for such calls"
        )
    least = min(guess.seconds for _, guess in guesses)
    equal = [(item, guess) for item, guess in guesses if guess.seconds <= least * (1 + TIE)]
    fastest, its_guess = min(equal, key=lambda each: each[1].seconds)
    # what may be gained is a hundredth, and guesses from afar are off by more: PyTorch stands where it is the faster
    afar = fastest.backend in COMPARED_AS_IS and its_guess.octaves > NEAR
    item, guess = (fastest, its_guess) if afar else equal[0]
    reason = f"{guess.seconds * 1e6:.3g} us expected from {guess.words}"
    others = sorted((other.seconds, one.name) for one, other in guesses if one is not item)
    if others:
        reason += f"; next {others[0][1]} {others[0][0] * 1e6:.3g} us"
    return Picked(item, guess, reason)
