"""What a point costs besides time, and what one costs against another by weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Pass, Verdict
from opforge.core.language import units
from opforge.core.language.errors import UsageError
from opforge.tuning.strategies import Objectives

NAMES = ("time", "memory", "energy", "error")

LEAST_ERROR = 1e-3
"""An error below this share of the bound counts as this: nobody needs less, and nought would be worth any time."""


def costs(timing: Timing, verdict: Verdict, tensor_bytes: float) -> Objectives:
    """Of one timed point, each the less the better: "time" (s), "memory" (bytes of a call's tensors and of what it
    takes beyond them), "energy" (J a call: the median power of the rounds, which its rival shared, times its time),
    "error" (the worst |error| as a share of its bound). What was not measured is left out.
    """
    found = {"time": timing.median_s}
    if timing.extra_bytes is not None:
        found["memory"] = tensor_bytes + timing.extra_bytes
    power = [moment.power_w for moment in timing.moments if moment.power_w]
    if power:
        found["energy"] = median(power) * timing.median_s
    if isinstance(verdict, Pass) and any(item.metrics for item in verdict.checked):
        found["error"] = max(verdict.worst_ratio, LEAST_ERROR)
    return found


def over(mine: Objectives, other: Objectives, weights: Mapping[str, float]) -> float:
    """What a point costs over another: 1 / (the weighted mean of the other's cost over its own), of the objectives
    that both have; by time where they share none that has weight.

    >>> round(over({"time": 1.0, "memory": 2.0}, {"time": 2.0, "memory": 2.0}, {"time": 0.5, "memory": 0.5}), 3)
    0.667
    """
    known = {name: weight for name, weight in weights.items() if weight > 0 and name in mine and name in other}
    if not known:
        return mine["time"] / other["time"]
    return sum(known.values()) / sum(weight * other[name] / mine[name] for name, weight in known.items())


def parse_weights(text: str) -> dict[str, float]:
    """ "time=0.6,memory=0.3,energy=0.1" as weights; {} of "". Raises UsageError for anything else."""
    weights: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        try:
            weights[name.strip()] = float(value)
        except ValueError:
            raise _unreadable(text) from None
    if text and not (set(weights) <= set(NAMES) and all(0 <= weight < float("inf") for weight in weights.values())):
        raise _unreadable(text)
    if text and not sum(weights.values()) > 0:
        raise _unreadable(text)
    return weights


def _unreadable(text: str) -> UsageError:
    return UsageError(
        f"--weights {text!r} says no weights: at least 0 each, one above 0, of {', '.join(NAMES)}. Example: "
        "time=0.6,memory=0.3,energy=0.1"
    )


def cost_words(cost: Objectives) -> str:
    """For a reader: time, memory, energy, error."""
    said: dict[str, Callable[[float], str]] = {
        "time": units.seconds,
        "memory": units.size,
        "energy": lambda value: f"{value:.3g} J",
        "error": lambda value: f"error {units.percent(value)} of its bound",
    }
    return ", ".join(said[name](cost[name]) for name in NAMES if name in cost)
