"""What NAME_performance.py and NAME_test.py of a generated folder do: the verbs, and what came as the last line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from opforge.core.evidence.comparison import UNSURE, Comparison


def performance(home: Path, candidate: str, baseline: str, target: float | None, options: Sequence[str]) -> int:
    """Compare two implementations and say whether the target is reached. The exit code: 1 where it is not, or where
    nothing could be compared.

    candidate, baseline   as `opforge compare` takes them
    target                the speed-up that is asked for; None: none is
    """
    asked = [sys.executable, "-m", "opforge", "--home", str(home), "compare", candidate, baseline, *options]
    if "--json" in options:
        return subprocess.run(asked, check=False).returncode
    done = subprocess.run([*asked, "--json"], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode or not done.stdout.strip():
        return done.returncode
    from opforge.core.evidence.record import from_json

    found = json.loads(done.stdout)
    comparisons = [from_json(one) for one in found["comparisons"]]
    for line in told(comparisons, found["not_compared"]):
        typer.echo(line)
    line, reached = verdict(comparisons, target)
    typer.echo(line)
    return 0 if reached else 1


def told(comparisons: Sequence[Comparison], not_compared: Mapping[str, str]) -> list[str]:
    """A sentence for each comparison, and what kept others from one."""
    from opforge.timing import sentence

    lines = [f"{one.workload} {one.dtype}: {sentence(one)}" for one in comparisons]
    return [*lines, *(f"{where}: {reason}" for where, reason in not_compared.items())]


def verdict(comparisons: Sequence[Comparison], target: float | None) -> tuple[str, bool]:
    """Whether the target is reached, in words and as a fact: by the geometric mean, where no comparison is unsure."""
    speed_up = math.exp(-sum(math.log(one.ratio) for one in comparisons) / max(1, len(comparisons)))
    told_of = f"{speed_up:.2f} times as fast, the geometric mean of {len(comparisons)}"
    if target is None:
        return f"{told_of}; no target was given", True
    if any(one.outcome == UNSURE for one in comparisons):
        return f"target {target:g}: unsure ({told_of}, and not all are sure); repeat it with a larger --budget", False
    reached = bool(comparisons) and speed_up >= target
    return f"target {target:g}: {'reached' if reached else 'not reached'} ({told_of})", reached


def tested(folder: Path, options: Sequence[str]) -> int:
    """Accuracy first, then performance, then PASSED or NOT PASSED; 0 for PASSED."""
    for part in ("accuracy", "performance"):
        typer.echo(f"--- {part} ---")
        file = folder / f"{folder.name}_{part}.py"
        if subprocess.run([sys.executable, str(file), *options], check=False, cwd=folder).returncode:
            typer.echo(f"NOT PASSED: {part}")
            return 1
    typer.echo("PASSED")
    return 0
