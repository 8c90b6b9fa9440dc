"""Spaces of a made-up tiled kernel on two made-up devices, for replays where no measured space is at hand.

The times come from a formula (waves of blocks, traffic per tile, too much shared memory fails, registers that spill),
not from any device: they show that a search works, and say nothing of how fast a kernel is.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from opforge.core.definition.implementation import Config
from opforge.tuning.replay import MeasuredSpace
from opforge.tuning.strategies import Legal

DEVICES = {
    "wide": {"units": 128, "shared": 160 * 1024, "rate": 4e14, "bandwidth": 3e12},
    "narrow": {"units": 20, "shared": 48 * 1024, "rate": 9e13, "bandwidth": 2e11},
}
M, N, K = 4096, 4096, 4096


def modelled_spaces() -> list[MeasuredSpace]:
    """One space for each made-up device: about a thousand points, of which some fail."""
    spaces = []
    for name, device in DEVICES.items():
        configs, seconds = [], []
        for m, n, k, warps, stages in itertools.product(
            (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128), (1, 2, 4, 8), (1, 2, 3, 4)
        ):
            if not 4 <= m * n / (32 * warps) <= 512:
                continue
            configs.append(
                Config((("BLOCK_M", m), ("BLOCK_N", n), ("BLOCK_K", k), ("num_warps", warps), ("num_stages", stages)))
            )
            seconds.append(_seconds(m, n, k, warps, stages, device))
        times = np.array(seconds)
        spaces.append(
            MeasuredSpace(
                kernel="modelled_matmul", device=name, legal=Legal(configs), seconds=times, best_s=float(times.min())
            )
        )
    return spaces


def _seconds(m: int, n: int, k: int, warps: int, stages: int, device: dict[str, float]) -> float:
    shared = 2 * stages * k * (m + n)
    if shared > device["shared"]:
        return math.inf
    registers = m * n / (32 * warps) + 24
    resident = max(1, min(device["shared"] // shared, 65536 // (32 * warps * min(255, registers)), 48 // warps))
    blocks = math.ceil(M / m) * math.ceil(N / n)
    waves = math.ceil(blocks / (device["units"] * resident)) / (blocks / (device["units"] * resident))
    traffic = 2 * K * (M * N / m + M * N / n)
    busy = min(1.0, warps * resident * (0.5 + 0.25 * stages) / 16)
    tensor_cores = min(1.0, m * n / (64 * 64)) ** 0.3 * min(1.0, k / 32) ** 0.4
    spilled = 1 + max(0.0, registers - 255) / 64
    compute_s = 2.0 * M * N * K / (device["rate"] * busy * tensor_cores)
    memory_s = traffic / (device["bandwidth"] * 4 * min(1.0, 0.4 + busy))
    return float((max(compute_s, memory_s) + 0.2 * min(compute_s, memory_s)) * waves * spilled)
