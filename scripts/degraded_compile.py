"""Compiles the candidates of scripts/degraded.py on a GPU, in several processes, Triton's with and without a cap."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from degraded_points import candidates_of, tasks

from opforge.machine import detect
from opforge.registry import load
from opforge.trial import compiled_now

REGISTERS = 64
SAID = "degraded: "
"""Begins a line of a compiling process that is its answer: compilers print programs there that begin with brackets."""


@contextlib.contextmanager
def register_cap(most: int | None) -> Iterator[None]:
    """Inside, every Triton kernel is compiled with at most so many registers for a thread."""
    from triton.runtime.jit import JITFunction

    original = JITFunction.run

    def run(self: Any, *args: Any, **given: Any) -> Any:
        return original(self, *args, **{**given, "maxnreg": most})

    if most is not None:
        JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = original


def compile_share(share: int, shares: int, device: str) -> None:
    """A compiling process: every `shares`th point of all tasks, Triton's with and without the cap, a line for each; of
    the others those that a library is made of.
    """
    import direct

    from opforge.tuning.point_compiler import code_of

    number = 0
    for task in tasks():
        operator = load().operator(task.operator)
        for place, point in enumerate(candidates_of(task, detect(device))):
            for cap in (None, REGISTERS) if point.implementation.backend == "triton" else (None,):
                number += 1
                if number % shares != share:
                    continue
                if point.implementation.backend != "triton":
                    if point.implementation.backend == "cuda":
                        compiled_now(point.implementation, point.config, device)
                    continue
                request = {
                    "homes": [],
                    "operator": task.operator,
                    "implementation": point.implementation.name,
                    "axes": dict(task.axes),
                    "dtype": task.dtype,
                    "scalars": operator.scalar_values(task.scalars),
                    "device": device,
                    "target": detect(device).target,
                }
                try:
                    with register_cap(cap):
                        use = code_of(request, point.config).use
                except direct.kernel_errors() as error:
                    refused = {"task": task.name, "place": place, "cap": cap, "refused": direct.reason_of(error)}
                    print(f"{SAID}{json.dumps(refused)}", flush=True)
                    continue
                shared = use.shared_bytes if use else None
                made = [task.name, place, cap, shared, use.registers if use else None]
                print(f"{SAID}{json.dumps(made)}", flush=True)


def compile_all(folder: Path, script: Path, shares: int, limit_s: float) -> dict[tuple[str, int, int | None], int]:
    """All points, `shares` processes at once. Shared memory in bytes by task, place and cap, of those that compiled.
    The reasons of the others are printed, each with how often it came; what compilers said is in `compilers.log`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = (folder / "compilers.log").open("w", encoding="utf-8")
    children = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), "--compile-share", str(share), str(shares)],
            stdout=subprocess.PIPE,
            # of a point that ptxas refuses Triton prints the whole program
            stderr=log,
            text=True,
        )
        for share in range(shares)
    ]
    until, found, reasons = time.monotonic() + limit_s, {}, Counter[str]()
    for child in children:
        try:
            said, _ = child.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
            reasons["its process was ended for want of time"] += 1
        for line in said.splitlines():
            if not line.startswith(SAID):
                continue
            try:
                told = json.loads(line.removeprefix(SAID))
            except ValueError:  # the process was ended in the middle of a line
                continue
            if isinstance(told, list):
                name, place, cap, shared, _ = told
                found[name, place, cap] = shared
            else:
                reasons[told["refused"]] += 1
        if child.returncode > 0:
            reasons[f"a compiling process ended with {child.returncode}; see {log.name}"] += 1
    log.close()
    for reason, count in reasons.most_common():
        print(f"not compiled: {count} x {reason}", flush=True)
    return found
