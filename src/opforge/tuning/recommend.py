"""Which implementation, without a measurement: from the times of other shapes, with the error that the same prediction
has on shapes that were left out. The prediction is the model by which calls are dispatched (roofline.time_model).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import COMPARED_WITH, Config, Implementation, Rejected
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.definition.shapes import Axes
from opforge.core.evidence.timing import long_launch_s
from opforge.core.language.errors import UsageError
from opforge.registry import Registry
from opforge.roofline.family_model import Family, FamilyModel
from opforge.roofline.time_model import WEIGHTS, Place, TimedCall, Weights, pick, place_of, tells
from opforge.runner.worker.manner import manner_as
from opforge.store.evidence_facts import Fact

WITHIN = 1.05
"""A predicted winner counts as right where it takes at most so many times as long as the true one."""

ONLY_ON = {"cuda": "sm_", "cpp": "host"}
"""How the target of a device begins that a backend's kernels are compiled for, where they are for one sort alone."""

LEAST_SHAPES = 5
"""So many shapes are needed before an error is stated."""


Siblings = Sequence[tuple[DeviceSpec, Sequence[Fact]]]
"""Devices that run the same code as the one that was measured, and the facts of each."""

Relatives = Mapping[str, Sequence[Fact]]
"""Facts of the family's other operators on the device that was measured, by their names."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One implementation's predicted time, from `shapes` measured shapes; the config is that of the nearest."""

    implementation: str
    config: Config
    seconds: float
    shapes: int


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The same prediction for measured calls, each shape left out: of `shapes` calls, the share whose predicted winner
    was within 5 % of the true one, and the most that one lost.
    """

    shapes: int
    right: float
    worst: float


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Fastest first. measured_on: whose times it rests on; held_out: None where there were too few shapes."""

    device: str
    measured_on: str
    predicted: tuple[Predicted, ...]
    held_out: HeldOut | None


def recommend(
    registry: Registry,
    operator: Operator,
    axes: Axes,
    dtype: str,
    spec: DeviceSpec,
    facts: Sequence[Fact],
    measured_on: DeviceSpec,
    siblings: Siblings = (),
    relatives: Relatives | None = None,
) -> Recommendation:
    """What to take for a call of `axes` on `spec`, by the times in `facts`, which were measured on `measured_on`, and
    those of its siblings. Where it is another device than `spec`, times go by the roofs of both sheets: measured
    ceilings of one alone would favour the other. Raises UsageError where the facts say nothing of the call.
    """
    if spec.name != measured_on.name:
        spec, measured_on = replace(spec, ceilings=()), replace(measured_on, ceilings=())
    siblings = [(replace(sibling, ceilings=()), theirs) for sibling, theirs in siblings]
    scalars = operator.scalar_values({})
    known = {
        item.name: item
        for item in registry.implementations(operator.name)
        if item.backend not in COMPARED_WITH
        and item.arch in ("", spec.target)
        and spec.target.startswith(ONLY_ON.get(item.backend, ""))
        and not isinstance(item.accepts(axes, dtype, scalars), Rejected)
    }

    def allowed(item: Implementation, config: Config) -> bool:
        answer = item.allows(config, axes, dtype, DTYPES[dtype].itemsize, scalars, spec.bounds())
        return set(config.as_dict()) == set(item.default.as_dict()) and not isinstance(answer, Rejected)

    def runnable(facts: Sequence[Fact]) -> list[Fact]:
        # times of configs that the device can't run say nothing, unless its default is there in their place
        telling = _telling(operator, _usable(operator, facts), dtype, scalars)
        fitting = [fact for fact in telling if fact.implementation in known]
        there = {fact.implementation for fact in fitting if allowed(known[fact.implementation], fact.config)}
        return [
            fact
            for fact in fitting
            if allowed(known[fact.implementation], fact.config)
            or (
                fact.implementation not in there
                and allowed(known[fact.implementation], known[fact.implementation].default)
            )
        ]

    seen = runnable(facts)
    there = [item for sibling, theirs in siblings for item in _timed(operator, runnable(theirs), sibling)]
    family = _family(registry, operator, relatives or {}, dtype, scalars, measured_on)
    model = FamilyModel(operator, known.values(), _timed(operator, seen, measured_on), siblings=there, family=family)
    place = place_of(operator, axes, dtype, scalars, manner_as(operator, axes, dtype, scalars, "contiguous"), spec)
    predicted = []
    for name, implementation in known.items():
        guess = model.guess(name, place)
        if guess is not None:
            measured = guess.told_by.config
            config = measured if allowed(implementation, measured) else implementation.default
            shapes = len({str(item.axes) for item in seen if item.implementation == name})
            predicted.append(Predicted(implementation=name, config=config, seconds=guess.seconds, shapes=shapes))
    if not predicted:
        raise UsageError(
            f"No time of {operator.name} in {dtype} on {measured_on.name} is known for an implementation that takes "
            f"this call and fits {spec.name}. Measure one: opforge bench {operator.name} --dtype {dtype}"
        )
    predicted.sort(key=lambda item: item.seconds)
    return Recommendation(
        device=spec.name,
        measured_on=measured_on.name,
        predicted=tuple(predicted),
        held_out=held_out(registry, operator, dtype, facts, measured_on, siblings=siblings, relatives=relatives or {}),
    )


def _usable(operator: Operator, facts: Sequence[Fact]) -> list[Fact]:
    """Those that have a time that is believed, of what may be chosen."""
    return [
        fact
        for fact in facts
        if fact.verdict == "Pass"
        and fact.median_s
        and not fact.suspect
        and not fact.trial
        and fact.backend not in COMPARED_WITH
        and set(fact.axes) == set(operator.axes)
    ]


def _telling(operator: Operator, facts: Sequence[Fact], dtype: str, scalars: dict[str, ScalarValue]) -> list[Fact]:
    """Those that say something of a call in `dtype` with parameters of this kind."""
    form, kind = operator.compute_dtype_of(dtype, scalars), operator.kind_of_call(scalars)
    telling = [fact for fact in facts if tells(operator, fact.dtype, fact.scalars, dtype, form)]
    return [fact for fact in telling if operator.kind_of_call(fact.scalars) == kind] or telling


def _timed(operator: Operator, facts: Sequence[Fact], spec: DeviceSpec) -> list[TimedCall]:
    places: dict[str, Place] = {}
    return [
        TimedCall(
            fact.implementation,
            fact.config,
            _place(operator, fact, spec, places),
            fact.median_s,
            fact.workload,
            long_launch_s(fact.launch_s),
        )
        for fact in facts
        if fact.median_s
    ]


def _family(
    registry: Registry,
    operator: Operator,
    relatives: Relatives,
    dtype: str,
    scalars: Mapping[str, ScalarValue],
    spec: DeviceSpec,
) -> Callable[[], Family]:
    """The times of the family's other operators that tell of a call in `dtype`, made at the first asking."""
    form = operator.compute_dtype_of(dtype, dict(scalars))

    @functools.cache
    def family() -> Family:
        found = {}
        for name, facts in relatives.items():
            other = registry.operator(name)
            usable = [item for item in _usable(other, facts) if tells(other, item.dtype, item.scalars, dtype, form)]
            found[name] = _timed(other, usable, spec)
        return found

    return family


def relatives_of(registry: Registry, operator: Operator, facts: Callable[[str], Sequence[Fact]]) -> Relatives:
    """The facts of the other operators of its family that do the same kind of work."""
    family = registry.family(operator.name)
    return {
        name: facts(name)
        for name in registry.names()
        if name != operator.name
        and family
        and registry.family(name) == family
        and registry.operator(name).unit == operator.unit
    }


def _in_a_row_s(fact: Fact) -> float:
    """Seconds of a call among others that follow each other at once."""
    return max(fact.median_s or 0.0, long_launch_s(fact.launch_s))


def _place(operator: Operator, fact: Fact, spec: DeviceSpec, places: dict[str, Place]) -> Place:
    """One Place for each measured call: the model takes the fastest of several configs at it."""
    key = f"{fact.dtype} {fact.layout} {fact.axes} {fact.scalars}"
    if key not in places:
        scalars = operator.scalar_values(fact.scalars)
        manner = manner_as(operator, fact.axes, fact.dtype, scalars, fact.layout)
        places[key] = place_of(operator, fact.axes, fact.dtype, scalars, manner, spec)
    return places[key]


def held_out(
    registry: Registry,
    operator: Operator,
    dtype: str,
    facts: Sequence[Fact],
    measured_on: DeviceSpec,
    weights: Weights = WEIGHTS,
    siblings: Siblings = (),
    siblings_know: bool = False,
    relatives: Relatives | None = None,
) -> HeldOut | None:
    """How often the prediction is right for an operator's measured calls, each from the other shapes. None where there
    are too few shapes.

    siblings_know   whether the siblings' times of the very shape are left there
    """
    usable = _usable(operator, facts)
    calls: dict[tuple[str, str, str, str], dict[str, Fact]] = {}
    for fact in usable:
        if fact.dtype == dtype:
            key = (str(fact.axes), str(sorted(fact.scalars.items())), fact.layout, fact.terms)
            known = calls.setdefault(key, {}).get(fact.implementation)
            if known is None or _in_a_row_s(fact) < _in_a_row_s(known):
                calls[key][fact.implementation] = fact
    if len({axes for axes, *_ in calls}) < LEAST_SHAPES:
        return None
    implementations = registry.implementations(operator.name)
    theirs = [(sibling, _usable(operator, facts)) for sibling, facts in siblings]
    families: dict[str, Callable[[], Family]] = {}
    lost = []
    for (axes, *_), true in calls.items():
        call = next(iter(true.values()))
        # of other shapes times on either terms, as `recommend` answers by both
        others = [fact for fact in usable if str(fact.axes) != axes]
        seen = _telling(operator, others, dtype, operator.scalar_values(call.scalars))
        there = [
            item
            for sibling, known_there in theirs
            for item in _timed(
                operator,
                _telling(
                    operator,
                    [fact for fact in known_there if siblings_know or str(fact.axes) != axes],
                    dtype,
                    operator.scalar_values(call.scalars),
                ),
                sibling,
            )
        ]
        scalars = operator.scalar_values(call.scalars)
        form = operator.compute_dtype_of(dtype, scalars)
        if form not in families:
            families[form] = _family(registry, operator, relatives or {}, dtype, scalars, measured_on)
        timed = _timed(operator, seen, measured_on)
        model = FamilyModel(operator, implementations, timed, weights, there, families[form])
        fit = [item for item in implementations if item.name in true and model.knows(item.name)]
        if len(fit) > 1:
            chosen = pick(model, fit, _place(operator, call, measured_on, {})).implementation.name
            seconds = {name: _in_a_row_s(fact) for name, fact in true.items()}
            lost.append(seconds[chosen] / min(seconds.values()))
    if not lost:
        return None
    return HeldOut(shapes=len(lost), right=sum(loss <= WITHIN for loss in lost) / len(lost), worst=max(lost))
