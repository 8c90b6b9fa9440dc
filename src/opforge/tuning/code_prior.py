"""What compiled code says of a point before it is measured: that it cannot be launched, or in which order points that
wait are tried.

Registers, spills, shared memory and the grid give two numbers: the share of warps that a unit holds, and how full the
last wave of blocks is. How much they matter here is learnt from the points that were measured; until then a launch
takes as long as its waves. A point that spills is not dropped: some of them win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from opforge.core.definition.device import DeviceSpec
from opforge.inspect.resources import DEVICES, occupancy

EXPECTED = (-0.1, -1.0, 0.1)
"""By how much the logarithm of the time grows with those of occupancy and of wave efficiency, and with a spill."""

SURE = 4.0
"""EXPECTED weighs as much as so many measured points."""


@dataclass(frozen=True, kw_only=True)
class CodeUse:
    """What the compiled kernel of a point uses: of several the most. blocks: of its grid, the largest."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    blocks: int


def cannot_launch(use: CodeUse, device: DeviceSpec) -> str:
    """Why the device takes no block of it; "" where it does, or the descriptor does not say."""
    if 0 < device.shared_bytes_per_block < use.shared_bytes:
        return (
            f"a block needs {use.shared_bytes} bytes of shared memory, and {device.name} has "
            f"{device.shared_bytes_per_block}"
        )
    if 0 < device.registers_per_unit < use.registers * use.threads:
        return (
            f"a block needs {use.registers * use.threads} registers, and a unit of {device.name} has "
            f"{device.registers_per_unit}"
        )
    return ""


class CodePrior:
    """Of one space on one device: told what points use and what they took, it says what others will take."""

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self.features: list[Any] = []
        self.logs: list[float] = []

    def tell(self, use: CodeUse, seconds: float) -> None:
        """A measured point."""
        if math.isfinite(seconds) and seconds > 0:
            self.features.append(self._features(use))
            self.logs.append(math.log(seconds))

    def expected(self, use: CodeUse) -> float:
        """Of one that waits: the less the sooner. A logarithm of time, up to what is the same for all points."""
        weights = np.array(EXPECTED)
        if len(self.logs) > 1:
            table, logs = np.array(self.features), np.array(self.logs)
            table, logs = table - table.mean(axis=0), logs - logs.mean()
            known = table.T @ table + SURE * np.eye(len(weights))
            weights = np.linalg.solve(known, table.T @ logs + SURE * weights)
        return float(self._features(use) @ weights)

    def _features(self, use: CodeUse) -> Any:
        limits = DEVICES.get(self.device.target) or DEVICES.get(self.device.target.rstrip("a"))
        if limits is None or use.threads < 1:
            return np.array([0.0, 0.0, float(use.stack_bytes > 0)])
        seat = occupancy(use.registers, use.threads, use.shared_bytes, limits)
        at_once = max(1, seat.blocks_per_sm) * max(1, self.device.units)
        full = use.blocks / (math.ceil(use.blocks / at_once) * at_once) if use.blocks else 1.0
        return np.array([math.log(max(seat.fraction, 1 / 64)), math.log(full), float(use.stack_bytes > 0)])
