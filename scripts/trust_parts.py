"""Parts of scripts/trust.py, so that all of it can be asked in several runs: what a part found is kept in a folder, and
a run that has reached its limit ends before the next part.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSED = 75
"""The exit code of a run that has ended before the last part: EX_TEMPFAIL of sysexits.h."""


class Paused(Exception):
    """The limit has been reached, and there are parts left."""


class Parts:
    """What has been found, by the name of the part."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.ends: float | None = None
        self.spent_s = 0.0

    def keep(self, folder: Path, limit_s: float) -> None:
        """From now on parts are kept in `folder`, and none is begun after `limit_s` seconds."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ends = folder, time.monotonic() + limit_s

    def part(self, name: str, take: Callable[[], Any]) -> Any:
        """What `take` gives, something that JSON can hold, or gave in an earlier run. Raises Paused. The seconds that
        it took are added to `spent_s`.
        """
        place = None if self.folder is None else self.folder / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json"
        if place is not None and place.exists():
            kept = json.loads(place.read_text(encoding="utf-8"))
            self.spent_s += kept["seconds"]
            return kept["found"]
        if self.ends is not None and time.monotonic() > self.ends:
            raise Paused(name)
        started = time.monotonic()
        found = take()
        seconds = time.monotonic() - started
        self.spent_s += seconds
        if place is not None:
            new = place.with_suffix(".new")
            new.write_text(json.dumps({"found": found, "seconds": seconds}), encoding="utf-8")
            new.replace(place)
        return found


PARTS = Parts()
