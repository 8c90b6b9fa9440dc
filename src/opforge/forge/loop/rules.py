"""The engine of rules: one strategy a round, from the tunables of a kernel's space. Generated code is given one first.

The order of strategies follows the bottleneck, and what like rounds on record gained. In conservative mode it is the
seeds' fixed one (block size, pipeline depth, warps, memory access, grid), and a round changes one parameter.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.evidence.diagnosis import ARITHMETIC, CACHE, INDEXING, MEMORY, OCCUPANCY, OVERHEAD, SCALAR, SPILLS
from opforge.core.evidence.optimization import LOGIC, PARAMETERS
from opforge.forge.loop.choices import Setting, with_choices, with_default
from opforge.forge.loop.engine import Proposal, Situation, Variant, Variants
from opforge.forge.loop.patterns import expected
from opforge.registry.implementation_files import read_implementation

BLOCK, DEPTH, WARPS, ACCESS, GRID, OTHER = (
    "block size", "pipeline depth", "warps", "memory access", "grid", "other tunables",
)  # fmt: skip
SEEDS_ORDER = (BLOCK, DEPTH, WARPS, ACCESS, GRID, OTHER)
"""Seed 003, section 5.3: strategies 1 to 4; warps go with the depth."""
TUNABLES: Mapping[str, tuple[str, ...]] = {
    BLOCK: ("PART", "BLOCK", "TILE", "ROWS", "COLS", "BLOCK_M", "BLOCK_N", "BLOCK_K", "BM", "BN", "BK", "ITEMS"),
    DEPTH: ("SUMS", "num_stages", "STAGES", "UNROLL"),
    WARPS: ("num_warps", "WARPS", "THREADS"),
    ACCESS: ("WIDE", "STREAM", "VEC", "VECTOR", "EARLY", "CACHE"),
    GRID: ("GRAIN", "SHARE", "GRID", "PERSISTENT", "GROUP", "CLUSTER", "SPLIT"),
}
HYPOTHESES = {
    BLOCK: ("larger pieces cost fewer indices and starts", "smaller pieces leave more to run side by side"),
    DEPTH: ("more under way hides the latency of one", "less under way leaves registers and code to the rest"),
    WARPS: ("more warps hide the latency of a row", "fewer warps have more registers each"),
    ACCESS: ("wide accesses and stores past the caches move more bytes", "plain accesses suit what is small or kept"),
    GRID: ("fewer, larger shares cost less to hand out", "more, smaller shares keep all processors busy"),
    OTHER: ("a tunable of its own, upwards", "a tunable of its own, downwards"),
}
"""Why a tunable's larger values may help, and why its smaller ones."""
PIECES = ("SPLIT", "GRID", "CLUSTER")
"""Tunables that count pieces: more of them are smaller shares."""
_STEP = re.compile(r"(\S+) (\S+) → (\S+)")
FIRST: Mapping[str, tuple[str, ...]] = {
    INDEXING: (BLOCK, ACCESS, GRID),
    SCALAR: (ACCESS, BLOCK, DEPTH),
    MEMORY: (ACCESS, GRID, BLOCK),
    ARITHMETIC: (ACCESS, DEPTH, GRID),
    OVERHEAD: (GRID, BLOCK),
    SPILLS: (BLOCK, WARPS),
    OCCUPANCY: (BLOCK, WARPS, DEPTH),
    CACHE: (BLOCK, GRID),
}
FAR = 0.1
"""Of the roof: a kernel so far below it does not wait for memory. How it walks comes before how wide it loads."""
MOST = 4
"""Candidates of a round."""


@dataclass(frozen=True)
class Start:
    """A text with a space, and the settings that it has now."""

    text: str
    space: Mapping[str, tuple[Setting, ...]]
    settings: Mapping[str, Setting]
    implementation: Implementation
    opened: bool


class Rules:
    """The engine without a model."""

    name = "rules"

    def __init__(self, scratch: Path, *, conservative: bool = False, most: int = MOST) -> None:
        self.scratch = scratch
        self.conservative = conservative
        self.most = most

    def propose(self, situation: Situation) -> Proposal | None:
        """The first strategy in order that has a candidate which this run has not tried; None where none has."""
        start = self._start(situation)
        if start is None:
            return None
        order = self._order(start, situation)
        # where nothing is new, what was not hopeless is asked once more: the machine may have been busy
        for again, (strategy, names) in itertools.product((False, True), order):
            seen = {*situation.seen(again=again), situation.text}
            variants = list(itertools.islice(self._variants(start, names, seen, situation), self.most))
            if variants:
                return Proposal(
                    strategy=strategy,
                    hypothesis=f"{reasons(strategy, variants)}; the bottleneck is {situation.diagnosis.bottleneck}",
                    expected=expected(situation.past, situation.family, situation.diagnosis.bottleneck, strategy),
                    variants=_given(variants),
                )
        return None

    def _start(self, situation: Situation) -> Start | None:
        implementation, text = situation.implementation, situation.text
        made = with_choices(implementation.backend, text)
        if made is None:
            if not implementation.space:
                return None
            return Start(text, implementation.space, implementation.default.as_dict(), implementation, False)
        # read as any implementation file is: what it says of its space is checked there
        self.scratch.mkdir(parents=True, exist_ok=True)
        stem = f"{implementation.backend}_opened"
        (self.scratch / f"{stem}{implementation.source.suffix}").write_text(made, encoding="utf-8")
        read = read_implementation(implementation.operator, self.scratch, stem)
        return Start(made, read.space, read.default.as_dict(), read, True)

    def _order(self, start: Start, situation: Situation) -> list[tuple[str, tuple[str, ...]]]:
        """Strategies with the tunables that each may change, the likeliest first."""
        known = {name for names in TUNABLES.values() for name in names}
        groups = {strategy: tuple(n for n in names if n in start.space) for strategy, names in TUNABLES.items()}
        groups[OTHER] = tuple(name for name in start.space if name not in known)
        if self.conservative:
            return [(strategy, (name,)) for strategy in SEEDS_ORDER for name in groups[strategy]]
        bottleneck = situation.diagnosis.bottleneck
        fraction = situation.diagnosis.fraction
        far = bottleneck == MEMORY and fraction is not None and fraction < FAR
        first = (BLOCK, GRID, ACCESS) if far else FIRST.get(bottleneck, ())
        tried = [one.strategy for one in situation.rounds]

        def rank(strategy: str) -> tuple[int, float, int]:
            gain = expected(situation.past, situation.family, bottleneck, strategy)
            place = first.index(strategy) if strategy in first else len(first) + SEEDS_ORDER.index(strategy)
            # what was not tried yet comes first, then what gained most in like rounds, then the bottleneck's order
            return tried.count(strategy), -(gain if gain is not None else 1.0), place

        return [(strategy, groups[strategy]) for strategy in sorted(SEEDS_ORDER, key=rank) if groups[strategy]]

    def _variants(
        self, start: Start, names: Sequence[str], seen: Collection[str], situation: Situation
    ) -> Iterator[Variant]:
        now = {name: start.settings[name] for name in names}
        points = itertools.product(*(start.space[name] for name in names))
        # few changes first, and of those the near ones
        ordered = sorted(
            (dict(zip(names, values, strict=True)) for values in points),
            key=lambda point: (
                sum(point[name] != now[name] for name in names),
                sum(abs(start.space[name].index(point[name]) - _place(start, name)) for name in names),
            ),
        )
        wide = [point for point in ordered if point != now]
        for point in _spread(wide, now, self.most):
            settings = {**start.settings, **point}
            config = Config(tuple(settings.items()))
            if not situation.allows(start.implementation, config):
                continue
            text = with_default(start.text, start.implementation.source.suffix == ".py", settings)
            if text in seen:
                continue
            changed = ", ".join(f"{name} {now[name]} → {value}" for name, value in point.items() if value != now[name])
            yield Variant(text=text, change=changed, claims=LOGIC if start.opened else PARAMETERS)


def reasons(strategy: str, variants: Sequence[Variant]) -> str:
    """Why these changes may help: a reason for each direction that they take, and the changes.

    >>> reasons(DEPTH, [Variant(text="", change="SUMS 4 → 1", claims=PARAMETERS)])
    'less under way leaves registers and code to the rest (SUMS 4 → 1)'
    """
    upwards, downwards = HYPOTHESES[strategy]
    ways: dict[str, list[str]] = {}
    for step in dict.fromkeys(step for variant in variants for step in variant.change.split(", ")):
        match = _STEP.fullmatch(step)
        if match is not None:
            up = _larger(match[3], match[2]) != (match[1] in PIECES)
            ways.setdefault(upwards if up else downwards, []).append(step)
    return "; ".join(f"{reason} ({', '.join(steps)})" for reason, steps in ways.items())


def _larger(after: str, before: str) -> bool:
    numbers = {"False": "0", "True": "1"}
    try:
        return float(numbers.get(after, after)) > float(numbers.get(before, before))
    except ValueError:
        return after > before


def _place(start: Start, name: str) -> int:
    values = start.space[name]
    return values.index(start.settings[name]) if start.settings[name] in values else 0


def _spread(
    points: Sequence[Mapping[str, Setting]], now: Mapping[str, Setting], most: int
) -> Iterator[Mapping[str, Setting]]:
    """All points where they are few; of many, the near and the far ones in turns."""
    if len(points) <= most:
        yield from points
        return
    near, far = list(points), list(reversed(points))
    given: list[Mapping[str, Setting]] = []
    for one, other in zip(near, far, strict=True):
        for point in (one, other):
            if point not in given:
                given.append(point)
                yield point


def _given(variants: Sequence[Variant]) -> Variants:
    waiting = list(variants)
    while waiting:
        yield waiting.pop(0)
