"""The legal set as arrays: for each point its features (what a model sees) and its levels (what a neighbour is).

A number that is never negative becomes its logarithm, because tiles, warps and stages act by ratios. Anything else gets
a column for each of its values. Parameters that differ in the letter of an axis only (BLOCK_M and BLOCK_N,
block_size_x and block_size_y) give their product as one more feature: it is the size of a tile or of a block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from opforge.core.definition.implementation import Config

AXIS = re.compile(r"(.+?)_?[xyzmnkXYZMNK]")


class Legal:
    """The points that every limit allows, the default first, if there is one.

    levels     int array [points, parameters]: the place of the value among those that the parameter takes
    features   float32 array [points, features], each from 0 to 1
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = tuple(configs)
        self.place = {_key(config): place for place, config in enumerate(self.configs)}
        names = [name for name, _ in self.configs[0].values] if self.configs else []
        self.values = [_ordered({config.as_dict()[name] for config in self.configs}) for name in names]
        self.levels = np.array(
            [
                [levels.index(named[name]) for name, levels in zip(names, self.values, strict=True)]
                for named in (config.as_dict() for config in self.configs)
            ],
            dtype=np.int16,
        ).reshape(len(self.configs), len(names))
        self.features = _features(names, self.values, self.levels)

    def __len__(self) -> int:
        return len(self.configs)

    def changes(self, place: int) -> Any:
        """In how many parameters each point differs from the one at `place`: int array [points]."""
        return (self.levels != self.levels[place]).sum(axis=1)

    def adjacent(self, place: int) -> Any:
        """The places of the points that differ from `place` in one parameter, by one step of its values."""
        apart = np.abs(self.levels.astype(np.int32) - self.levels[place]).sum(axis=1)
        return np.flatnonzero((apart == 1) & (self.changes(place) == 1))


def _key(config: Config) -> frozenset[tuple[str, Any]]:
    return frozenset(config.values)


def place_of(legal: Legal, config: Config) -> int | None:
    """Where a config stands in the legal set, whatever the order of its parameters; None where it is not legal."""
    return legal.place.get(_key(config))


def _ordered(values: set[Any]) -> list[Any]:
    """Numbers by their size, anything else by its text."""
    return sorted(values, key=lambda value: (isinstance(value, str), value if not isinstance(value, str) else 0, value))


def _features(names: Sequence[str], values: Sequence[list[Any]], levels: Any) -> Any:
    columns: list[Any] = []
    families: dict[str, list[Any]] = {}
    for place, (name, taken) in enumerate(zip(names, values, strict=True)):
        if len(taken) == 1:
            continue
        if all(isinstance(value, (int, float)) and value >= 0 for value in taken):
            scale = np.log2(np.array(taken, dtype=float) + (taken[0] == 0 or taken[0] < 1))
            column = scale[levels[:, place]]
            columns.append(column)
            if named := AXIS.fullmatch(name):
                families.setdefault(named[1], []).append(column)
        else:
            columns += [(levels[:, place] == level).astype(float) for level in range(len(taken))]
    columns += [sum(family) for family in families.values() if len(family) > 1]
    if not columns:
        return np.zeros((len(levels), 1), dtype=np.float32)
    table = np.array(columns, dtype=float).T
    least, span = table.min(axis=0), np.ptp(table, axis=0)
    return ((table - least) / np.where(span > 0, span, 1.0)).astype(np.float32)


def coarse(values: Sequence[Any], steps: int = 3) -> list[int]:
    """The levels of a coarse grid: the first, the last and those in the middle, `steps` at most."""
    return sorted({round(step * (len(values) - 1) / max(1, steps - 1)) for step in range(steps)})
