"""Which implementation, without a measurement: from the times of other shapes, with the error that the same prediction
has on shapes that were left out.

A time is taken relative to the device's roof at its shape: what is left varies slowly from shape to shape. For a shape
without a time it is the mean over the measured ones, weighted by their distance in the logarithms of the axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opforge.core.device import DeviceSpec
from opforge.core.dtypes import DTYPES
from opforge.core.errors import UsageError
from opforge.core.implementation import COMPARED_WITH, Config, Implementation, Rejected
from opforge.core.operator import Operator, ScalarValue
from opforge.core.shapes import Axes
from opforge.registry import Registry
from opforge.roofline import bound
from opforge.store.evidence_facts import Fact

POWER, NEAREST = 2.0, 0.2
"""A shape's weight is 1 / (NEAREST + doublings of its axes) ^ POWER. Of powers 2, 3 and 5, 2 was best for matmul and
within 1 % of the best for all operators, on the H200's shapes left out one at a time.
"""

FLOOR_S = 2e-6
"""Below this a time is that of a launch, and says nothing of the work: it is added to the roof."""

WITHIN = 1.05
"""A predicted winner counts as right where it takes at most so many times as long as the true one."""

LEAST_SHAPES = 5
"""So many shapes are needed before an error is stated."""


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


@dataclass(frozen=True)
class _Time:
    """A measured time over the roof at its shape, as a logarithm."""

    place: tuple[float, ...]
    call: tuple[str, str]
    implementation: str
    config: Config
    seconds: float
    over_roof: float


def recommend(
    registry: Registry,
    operator: Operator,
    axes: Axes,
    dtype: str,
    spec: DeviceSpec,
    facts: Sequence[Fact],
    measured_on: DeviceSpec,
) -> Recommendation:
    """What to take for a call of `axes` on `spec`, by the times in `facts`, which were measured on `measured_on`. Where
    that is another device, times go by the roofs of both sheets: measured ceilings of one alone would favour the other.
    Raises UsageError where the facts say nothing of the call.
    """
    if spec.name != measured_on.name:
        spec, measured_on = replace(spec, ceilings=()), replace(measured_on, ceilings=())
    scalars = operator.scalar_values({})
    known = {
        item.name: item
        for item in registry.implementations(operator.name)
        if item.backend not in COMPARED_WITH
        and item.arch in ("", spec.target)
        and not isinstance(item.accepts(axes, dtype, scalars), Rejected)
    }
    times = _times(operator, dtype, facts, measured_on)
    place, roof_s = _place(axes), _roof_s(operator, axes, dtype, scalars, spec)
    predicted = []
    for name, implementation in known.items():
        said = _over_roof(place, [item for item in times if item.implementation == name])
        if said is not None:
            nearest = min((item for item in times if item.implementation == name), key=lambda item: _far(place, item))
            config = _allowed(implementation, nearest.config, axes, dtype, scalars, spec)
            shapes = len({item.place for item in times if item.implementation == name})
            seconds = math.exp(said) * roof_s
            predicted.append(Predicted(implementation=name, config=config, seconds=seconds, shapes=shapes))
    if not predicted:
        raise UsageError(
            f"No time of {operator.name} in {dtype} on {measured_on.name} is known for an implementation that takes "
            f"this call. Measure one: opforge bench {operator.name} --dtype {dtype}"
        )
    predicted.sort(key=lambda item: item.seconds)
    return Recommendation(
        device=spec.name, measured_on=measured_on.name, predicted=tuple(predicted), held_out=_held_out(times)
    )


def _times(operator: Operator, dtype: str, facts: Sequence[Fact], spec: DeviceSpec) -> list[_Time]:
    times = []
    for fact in facts:
        usable = fact.verdict == "Pass" and fact.median_s and not fact.suspect and not fact.trial
        if not usable or fact.dtype != dtype or fact.backend in COMPARED_WITH or fact.median_s is None:
            continue
        roof_s = _roof_s(operator, fact.axes, dtype, operator.scalar_values(fact.scalars), spec)
        times.append(
            _Time(
                place=_place(fact.axes),
                call=(str(sorted(fact.scalars.items())), fact.terms),
                implementation=fact.implementation,
                config=fact.config,
                seconds=fact.median_s,
                over_roof=math.log(fact.median_s / roof_s),
            )
        )
    return times


def _roof_s(operator: Operator, axes: Axes, dtype: str, scalars: dict[str, ScalarValue], spec: DeviceSpec) -> float:
    """Seconds. A descriptor without rates gets 1 TB/s: the order of the implementations does not depend on it."""
    cost = operator.cost(axes, dtype, scalars)
    roof = bound(cost, spec, operator.compute_dtype_of(dtype, scalars), operator.unit)
    return FLOOR_S + (roof.time_s if roof is not None else cost.bytes / 1e12)


def _place(axes: Axes) -> tuple[float, ...]:
    """Logarithms of the axes, those of several numbers multiplied."""
    sizes = [math.prod(value) if isinstance(value, tuple | list) else value for _, value in sorted(axes.items())]
    return tuple(math.log2(max(1, size)) for size in sizes)


def _far(place: tuple[float, ...], item: _Time) -> float:
    if len(place) != len(item.place):
        return math.inf
    return sum(abs(one - other) for one, other in zip(place, item.place, strict=True))


def _over_roof(
    place: tuple[float, ...], times: Sequence[_Time], power: float = POWER, nearest: float = NEAREST
) -> float | None:
    """The weighted mean; None where fewer than two shapes speak."""
    near = [item for item in times if len(item.place) == len(place)]
    if len({item.place for item in near}) < 2:
        return None
    weights = [float((nearest + _far(place, item)) ** -power) for item in near]
    return sum(weight * item.over_roof for weight, item in zip(weights, near, strict=True)) / sum(weights)


def _allowed(
    implementation: Implementation,
    config: Config,
    axes: Axes,
    dtype: str,
    scalars: dict[str, ScalarValue],
    spec: DeviceSpec,
) -> Config:
    """The config where every limit allows it for this call on this device, else the default."""
    if set(config.as_dict()) != set(implementation.default.as_dict()):
        return implementation.default
    answer = implementation.allows(config, axes, dtype, DTYPES[dtype].itemsize, scalars, spec.bounds())
    return implementation.default if isinstance(answer, Rejected) else config


def held_out(
    operator: Operator,
    dtype: str,
    facts: Sequence[Fact],
    measured_on: DeviceSpec,
    power: float = POWER,
    nearest: float = NEAREST,
) -> HeldOut | None:
    """How often the prediction is right for an operator's measured calls, each from the other shapes, with weights of
    `power` and `nearest` (in doublings of an axis). None where there are too few shapes.
    """
    return _held_out(_times(operator, dtype, facts, measured_on), power, nearest)


def _held_out(times: Sequence[_Time], power: float = POWER, nearest: float = NEAREST) -> HeldOut | None:
    """Each measured call predicted from the other shapes."""
    calls = {(item.place, item.call) for item in times}
    if len({place for place, _ in calls}) < LEAST_SHAPES:
        return None
    lost = []
    for place, call in sorted(calls):
        true = {item.implementation: item.seconds for item in times if (item.place, item.call) == (place, call)}
        others = [item for item in times if item.place != place and item.call[1] == call[1]]
        predicted = {
            name: said
            for name in true
            if (said := _over_roof(place, [item for item in others if item.implementation == name], power, nearest))
            is not None
        }
        if len(predicted) > 1:
            lost.append(true[min(predicted, key=lambda name: predicted[name])] / min(true.values()))
    if not lost:
        return None
    return HeldOut(shapes=len(lost), right=sum(loss <= WITHIN for loss in lost) / len(lost), worst=max(lost))
