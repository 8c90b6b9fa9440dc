"""Which operators a gain comes from: a model with some of its functions replaced, against the same with one more.

The order in which functions are added matters where they meet, so it is drawn anew in each round (Shapley 1953; Castro
et al., Polynomial calculation of the Shapley value based on sampling, 2009). Within a round the steps add up to the
whole by themselves, and so do the parts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from opforge.core.language.errors import OpforgeError, UsageError
from opforge.model.agreement import Inputs, agreement, before, forward, inputs_of, training_step
from opforge.model.compare import FORWARD, TRAINING, Variant, call_of, twin
from opforge.model.patch import patch
from opforge.timing.paired_statistics import student_quantile

FASTER, SLOWER, UNSURE = "FASTER", "SLOWER", "UNSURE"
TRIMMED = 0.2
"""This share of the steps is left out at each end: one call in ten that is interrupted touches a fifth of the steps."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one function's replacement does to the time of a call.

    seconds     the trimmed mean over rounds; below 0 it saves time
    low, high   its interval, of all parts together at the confidence that was asked
    outcome     FASTER or SLOWER where the interval leaves out 0 and the share that does not count
    """

    name: str
    seconds: float
    low: float
    high: float
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The parts, the whole, and what nothing replaced takes.

    rest   the whole less the parts, which is 0 but for what trimming leaves out of each
    """

    parts: tuple[Part, ...]
    whole: Part
    base_s: float
    rounds: int

    @property
    def rest(self) -> float:
        return self.whole.seconds - sum(part.seconds for part in self.parts)


def attribute(
    names: Sequence[str],
    seconds_of: Callable[[frozenset[str]], float],
    *,
    rounds: int = 40,
    confidence: float = 0.99,
    band: float = 0.005,
    order: random.Random | None = None,
) -> Attribution:
    """The Attribution of the difference between nothing and everything replaced.

    seconds_of   a sample of the time with these functions replaced
    band         a part of less than this share of the time counts as none
    """
    if not names or rounds < 6:
        raise UsageError("An attribution needs a function that is replaced, and six rounds.")
    shuffle, drawn = order or random.Random(), list(names)
    steps: list[dict[str, float]] = []
    bases: list[float] = []
    for _ in range(rounds):
        shuffle.shuffle(drawn)
        chain = [frozenset(drawn[:count]) for count in range(len(drawn) + 1)]
        # timed in an order of its own, so that a machine that warms up favours nothing
        taken = {some: seconds_of(some) for some in shuffle.sample(chain, len(chain))}
        steps.append({name: taken[chain[at + 1]] - taken[chain[at]] for at, name in enumerate(drawn)})
        bases.append(taken[chain[0]])
    base = _trimmed(bases)[0]
    # the whole is a part too
    each = (1 - confidence) / (len(names) + 1)
    parts = [_part(name, [step[name] for step in steps], each, band * base) for name in names]
    whole = _part("everything", [sum(step.values()) for step in steps], each, band * base)
    return Attribution(parts=tuple(parts), whole=whole, base_s=base, rounds=rounds)


def _trimmed(values: Sequence[float]) -> tuple[float, float, int]:
    """The mean without the largest and smallest fifths, its standard error, and its degrees of freedom (Yuen, The
    two-sample trimmed t for unequal population variances, 1974).
    """
    cut = int(len(values) * TRIMMED)
    ordered = sorted(values)
    kept = ordered[cut : len(ordered) - cut]
    drawn_in = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = stdev(drawn_in) / ((1 - 2 * cut / len(values)) * len(values) ** 0.5)
    return fmean(kept), error, len(kept) - 1


def _part(name: str, values: Sequence[float], risk: float, nothing: float) -> Part:
    mean, error, freedom = _trimmed(values)
    half = student_quantile(risk, freedom) * error
    low, high = mean - half, mean + half
    outcome = FASTER if high < -nothing else SLOWER if low > nothing else UNSURE
    return Part(name=name, seconds=mean, low=low, high=high, outcome=outcome)


def attribute_model(
    model: torch.nn.Module,
    example: Any,
    *,
    training: bool = False,
    rounds: int = 40,
    clock: Callable[[], float] | None = None,
    **options: Any,
) -> Attribution:
    """Which functions the time of a patched model comes from: twins of it with some of them replaced, in turns."""
    import time

    now = clock or time.perf_counter
    inputs = inputs_of(example)
    names = replaced_functions(model, inputs)
    phase = TRAINING if training else FORWARD
    calls: dict[frozenset[str], Callable[[], None]] = {}

    def seconds_of(some: frozenset[str]) -> float:
        if some not in calls:
            plain = twin(model)
            if some:
                patch(plain, only=some, **options)
            calls[some] = call_of(Variant(name="", model=plain, plain=plain), inputs, phase)
            calls[some]()
        calls[some]()
        begun = now()
        calls[some]()
        return now() - begun

    return attribute(names, seconds_of, rounds=rounds)


def replaced_functions(model: torch.nn.Module, inputs: Inputs) -> tuple[str, ...]:
    """The functions of which a patched model's calls are computed by operators."""
    patched = patch(twin(model), example=inputs)
    return tuple(sorted({line.site.function for line in patched.receipt().replaced}))  # type: ignore[operator]


def wrong_functions(model: torch.nn.Module, example: Any) -> dict[str, str]:
    """The functions whose replacement alone makes the model disagree with what it was, and how."""
    inputs = inputs_of(example)
    was, wrong = before(model, inputs), {}
    for name in replaced_functions(model, inputs):
        patched = patch(twin(model), only=[name])
        try:
            agreement(was, forward(patched, inputs), training_step(patched, inputs))
        except OpforgeError as error:
            wrong[name] = str(error).split(". The patch")[0]
    return wrong
