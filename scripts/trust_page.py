"""docs/trust.md: the figures of a whole `make trust`, as it printed them."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

HEAD = """# What `make trust` found

Written by `python scripts/trust.py --page docs/trust.md` from the figures that it printed. What is asked, and how:
[timing](timing.md#how-opforge-is-measured-itself). A row is "unanswerable here" where two plain loops, which have
nothing of opforge's timing, disagree by more than the bound; it is no pass.

"""


class Told(Protocol):
    """A figure as scripts/trust.py has it."""

    name: str
    wanted: str
    found: str
    holds: bool


def page(figures: Sequence[Told], seconds: float) -> str:
    """The page's text. `seconds` is what all of it took."""
    short = [figure for figure in figures if not figure.holds]
    head = (
        f"{datetime.date.today().isoformat()}, {os.cpu_count()} cores of {processor()}: {len(figures) - len(short)} of "
        f"{len(figures)} figures hold, in {seconds / 60:.0f} minutes.\n\n"
    )
    lines = ["| | figure | wanted | found |", "| --- | --- | --- | --- |"]
    for figure in figures:
        first, *rest = figure.found.replace("|", "\\|").split("\n")
        seen = f"{first} (the rows: below)" if rest else first
        lines.append(f"| {'holds' if figure.holds else '**short**'} | {figure.name} | {figure.wanted} | {seen} |")
    for figure in figures:
        _, *rest = figure.found.split("\n")
        if rest:
            lines += ["", f"## {figure.name[0].upper()}{figure.name[1:]}", "", "```"]
            lines += [*(line.removeprefix("    ") for line in rest), "```"]
    return HEAD + head + "\n".join(lines) + "\n"


def processor() -> str:
    """The processor's name where Linux tells it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
