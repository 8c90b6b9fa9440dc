"""Patience: waits for other work to leave the processors before times that decide, and says whether it came back.

A kernel on as many threads as there are processors waits for the one that another process has: 40 to 77 times as long
as alone (row_norm, 2^20 elements, two threads on two cores at load 3, 2026-11-25), where it is 1.5 times as fast as on
one thread. No number of pairs helps against that: each of them is disturbed. So the machine is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

IDLE = 0.85
"""Share of processor time that nobody takes while nothing of ours runs: the machine is still."""
DISTURBED = 0.15
"""Share of a measurement in which somebody waited for a processor; above it, times say more about others."""
LOOK_S, EACH_S = 0.3, 15.0
"""How long a look at an idle machine takes, and the longest wait for one measurement."""
AGAIN = 2
"""How often a disturbed measurement is repeated."""
NOTE = "others had the processors"


class Patience:
    """What is left of the seconds that a loop may wait; None: it doesn't ask, and nothing is disturbed.

    `root` stands for / in tests, `clock` and `sleep` for time.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.asks, self.left = seconds is not None, seconds or 0.0
        self.root, self.clock, self.sleep = root, clock, sleep
        self._since: tuple[float, float | None] = (clock(), None)

    def wait(self) -> None:
        """Return when the machine is still, or this wait's share of the seconds is over; a measurement begins now."""
        began = self.clock()
        while self.left > 0 and self.clock() - began < min(EACH_S, self.left):
            before = _ticks(self.root)
            self.sleep(LOOK_S)
            after = _ticks(self.root)
            if before is None or after is None or after[0] <= before[0]:
                break
            if (after[1] - before[1]) / (after[0] - before[0]) >= IDLE:
                break
        self.left -= self.clock() - began
        self._since = (self.clock(), _waited(self.root))

    def disturbed(self) -> float:
        """The share of the time since `wait` in which somebody waited for a processor, where that is more than a quiet
        machine has; else 0. 0 too where the kernel does not count it (/proc/pressure/cpu).
        """
        since, before = self._since
        now, after = self.clock(), _waited(self.root)
        if not self.asks or before is None or after is None or now <= since:
            return 0.0
        share = (after - before) / (now - since)
        return share if share > DISTURBED else 0.0


def note(share: float) -> str:
    """What a comparison says that was disturbed."""
    return f"{NOTE} in {share:.0%} of the time: what was seen says little about the kernels"


def _ticks(root: Path) -> tuple[int, int] | None:
    """(all, idle) ticks of all processors since the start; None where the kernel does not say."""
    try:
        first = (root / "proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        counts = [int(word) for word in first[1:]]
        return sum(counts[:8]), counts[3] + counts[4]
    except (OSError, ValueError, IndexError):
        return None


def _waited(root: Path) -> float | None:
    """Seconds since the start in which some task waited for a processor; None where the kernel does not say."""
    try:
        line = (root / "proc/pressure/cpu").read_text(encoding="ascii").split("\n", 1)[0]
        return int(line.rsplit("total=", 1)[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None
