"""The time model with what the times of a family's other operators say of an operator's own: how shares change with the
bytes of an element, and which operator is its twin.

Size of elements. Twice the elements in the same bytes are twice the arithmetic: what is bound by instructions takes a
larger share of a smaller dtype. How much larger is known from calls that were timed in two sizes: an implementation's
own, beside the mean over the family's other operators. PyTorch's and our kernels are two groups: which of a group's
files a formula is in says little, that PyTorch's kernels are one library's says much.

Twins. Where the family's other operator was timed at the very call, and no own time is near, its time says what no
neighbour does: what a width does to a kernel of that build. It says so only where both are alike otherwise too, and
that is asked of the operator's own calls: each of them is guessed without its own times, with the twin's and without.
A twin's times are then looked at as a sibling device's are: its shares, and what own shares differ from them nearby.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import COMPARED_AS_IS, Implementation
from opforge.core.definition.operator import Operator
from opforge.roofline.time_model import WEIGHTS, Guess, Model, Place, TimedCall, Weights, pick, share

Family = Mapping[str, Sequence[TimedCall]]
"""Times of other operators of a family on the device, by their names."""

TWIN_FROM = 1.0
"""Octaves to the nearest own time beyond which a twin is asked."""
TWIN_AT = 0.3
"""A twin's time is of the very call up to so many octaves."""
TWIN_CALLS = 4
"""So many own calls, of different sizes and far from each other, a twin must have told."""
TWIN_GAIN = 0.5
"""What was lost on them without the twin (time beside the best, as a logarithm, TWIN_LOSS at most of each call) must at
least halve."""
TWIN_LOSS = 0.5
SHRINKING = 1.0
"""The family's mean counts as if one more operator had no difference, an own mean as if one more call had the
family's."""


class FamilyModel(Model):
    """The model of one operator on one device that asks the family as well.

    family   gives the times of the family's other operators. It is called at most once, by the first call that they
             could tell something of
    twins    whether twins are looked for
    """

    def __init__(
        self,
        operator: Operator,
        implementations: Iterable[Implementation],
        seen: Iterable[TimedCall],
        weights: Weights = WEIGHTS,
        siblings: Iterable[TimedCall] = (),
        family: Callable[[], Family] = dict,
        twins: bool = True,
    ) -> None:
        implementations = list(implementations)
        super().__init__(operator, implementations, seen, weights, siblings)
        self._of = (operator, implementations)
        self._ask, self._asks_twins = family, twins
        self._family_times: Family | None = None
        self._effect: Callable[[str], float] | None = None
        self._twins: dict[str, Model | None] = {}
        self._twin_of: tuple[Place | None, Model | None] = (None, None)

    def guess(self, implementation: str, place: Place) -> Guess | None:
        """What an implementation is expected to take for a call; None where no time of it is known."""
        twin = self._twin(place)
        return super().guess(implementation, place) if twin is None else twin.guess(implementation, place)

    def of_size(self, item: TimedCall, place: Place) -> float:
        """What a time's share is more in the dtype of a call, as a logarithm."""
        octaves = octaves_of_size(item.place.dtype, place.dtype)
        if not octaves:
            return 0.0
        if self._effect is None:
            self._effect = size_effects(self._own(), self._family())
        return octaves * self._effect(item.implementation)

    def _own(self) -> list[TimedCall]:
        return [item for timed in self._seen.values() for item in timed]

    def _family(self) -> Family:
        if self._family_times is None:
            self._family_times = self._ask()
        return self._family_times

    def _with(self, seen: Iterable[TimedCall], siblings: Iterable[TimedCall] = ()) -> FamilyModel:
        """The same over other times, without twins."""
        return FamilyModel(*self._of, seen, self.weights, siblings, self._family, twins=False)

    def _twin(self, place: Place) -> Model | None:
        """The model that looks at the times of the twin which was timed at a call as well; None where there is none."""
        if not self._asks_twins or not self._seen:
            return None
        if self._twin_of[0] is not place:
            self._twin_of = (place, self._found_twin(place))
        return self._twin_of[1]

    def _found_twin(self, place: Place) -> Model | None:
        if min(self._octaves_to(place, self._seen), self._octaves_to(place, self._siblings)) <= TWIN_FROM:
            return None
        for name, times in self._family().items():
            if any(self._is_at(item.place, place) for item in times):
                if name not in self._twins:
                    self._twins[name] = self._tried_twin(times)
                if (twin := self._twins[name]) is not None:
                    return twin
        return None

    def _octaves_to(self, place: Place, known: Mapping[str, list[TimedCall]]) -> float:
        """How far the nearest of some times is from a call."""
        nearest = (self._nearest(name, place, known)[0][1] for name in known)
        return min(nearest, default=math.inf)

    def _is_at(self, theirs: Place, place: Place) -> bool:
        """Whether a time of another operator is of the very call, as far as both have the same inputs."""
        return (
            theirs.dtype == place.dtype
            and theirs.octaves.keys() == place.octaves.keys()
            and theirs.manner[:1] == place.manner[:1]
            and self.octaves(place, theirs) <= TWIN_AT
        )

    def _tried_twin(self, times: Sequence[TimedCall]) -> Model | None:
        """The model with a twin's times, where they told enough of the own calls better than those without them: each
        call of another size than all the others, and far from them, guessed without its own times in any dtype.
        """
        inputs = len(self._of[0].inputs)
        ours = [item for item in times if item.implementation in self._cautious]
        theirs = [replace(item, place=_as_if_of(item.place, inputs)) for item in ours]
        calls: dict[int, list[TimedCall]] = defaultdict(list)
        for item in self._own():
            calls[id(item.place)].append(item)
        lost, with_twin, sizes = 0.0, 0.0, set()
        for call in calls.values():
            place = call[0].place
            if len(call) < 2 or not any(self._is_at(item.place, place) for item in theirs):
                continue
            others = [item for item in self._own() if item.place.octaves != place.octaves]
            without = self._with(others)
            if without._octaves_to(place, without._seen) <= TWIN_FROM:
                continue
            sizes.add(str(place.octaves))
            lost += without._lost(call)
            with_twin += self._with(others, theirs)._lost(call)
        good = len(sizes) >= TWIN_CALLS and lost > 0 and with_twin <= TWIN_GAIN * lost
        return self._with(self._own(), theirs) if good else None

    def _lost(self, call: Sequence[TimedCall]) -> float:
        """What is lost on a call whose times are known, as a logarithm."""
        seconds = {item.implementation: item.in_a_row_s for item in call}
        fit = [item for item in self._of[1] if item.name in seconds]
        chosen = pick(self, fit, call[0].place).implementation.name
        return min(TWIN_LOSS, math.log(seconds[chosen] / min(seconds.values())))


def _as_if_of(place: Place, inputs: int) -> Place:
    """Another operator's place with as many inputs: what more there are lie as its last does."""
    manner = (*place.manner, *place.manner[-1:] * inputs)[:inputs]
    return replace(place, manner=manner)


def octaves_of_size(one: str, other: str) -> float:
    """By how many octaves the elements of `other` are smaller than those of `one`: 1 from float32 to float16."""
    return math.log2(DTYPES[one].itemsize / DTYPES[other].itemsize)


def size_effects(own: Iterable[TimedCall], family: Family) -> Callable[[str], float]:
    """By an implementation's name: how its share grows, as a logarithm, for each octave that elements are smaller."""
    mine = _slopes(own)
    groups: dict[bool, list[float]] = defaultdict(list)
    for times in family.values():
        of_operator: dict[bool, list[float]] = defaultdict(list)
        for name, slopes in _slopes(times).items():
            of_operator[_is_ours(name)].extend(slopes)
        for group, slopes in of_operator.items():
            groups[group].append(sum(slopes) / len(slopes))

    def effect(name: str) -> float:
        found = groups.get(_is_ours(name), [])
        mean = sum(found) / (len(found) + SHRINKING)
        slopes = mine.get(name, [])
        return (sum(slopes) + SHRINKING * mean) / (len(slopes) + SHRINKING)

    return effect


def _is_ours(name: str) -> bool:
    """By the file's name alone: of other operators' implementations only names are known here."""
    return name.partition("_")[0] not in COMPARED_AS_IS


def _slopes(times: Iterable[TimedCall]) -> dict[str, list[float]]:
    """By implementation, for each call that was timed in two sizes of elements: the difference of shares an octave."""
    calls: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for item in times:
        place = item.place
        what = sorted((name, str(value)) for name, value in place.names.items() if name not in ("dtype", "itemsize"))
        known = calls[item.implementation, f"{what} {[layout for layout, _ in place.manner]}"]
        known[place.dtype] = min(known.get(place.dtype, math.inf), share(item))
    found: dict[str, list[float]] = defaultdict(list)
    for (name, _), shares in calls.items():
        largest = max(shares, key=lambda dtype: DTYPES[dtype].itemsize)
        slopes = [
            (value - shares[largest]) / octaves
            for dtype, value in shares.items()
            if (octaves := octaves_of_size(largest, dtype)) > 0
        ]
        if slopes:
            found[name].append(sum(slopes) / len(slopes))
    return found
