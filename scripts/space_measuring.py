"""The process that measures points of whole spaces for scripts/spaces.py, and the journal that it keeps.

A point is checked against PyTorch before it counts, on outputs that were filled with NaN. Points with the same code are
measured once.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from space_definitions import SPACES, Wanted, points_of

from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator
from opforge.machine import detect
from opforge.registry import load

SAMPLES = 7
SAMPLE_S = 1e-3
"""Seconds of work between two events."""
HOPELESS = 8.0
"""A point that takes so many times as long as the best one gets three samples: it only has to be known as slow."""
REFERENCE_EVERY = 40
"""Points between two looks at the space's first point: how far the clock drifted is said in the file."""


class Progress:
    """The journal of a space: what is known of each point, by its place. A point that was begun and never ended took
    its process along.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[int, dict[str, Any]] = {}
        self.begun: int | None = None
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # the last line of a process that was killed
            self._take(said)

    def _take(self, said: dict[str, Any]) -> None:
        if "begun" in said:
            self.begun = said["begun"]
        else:
            self.known[said["point"]] = said
            self.begun = None if said["point"] == self.begun else self.begun

    def tell(self, said: dict[str, Any]) -> None:
        """Kept at once."""
        self._take(said)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")


def timed(call: Callable[[Sequence[Any]], Any], copies: Sequence[Sequence[Any]], device: str, best_s: float) -> Any:
    """Samples of one call in seconds, inputs in turn from copies that fit no cache together; on a GPU in a CUDA graph
    where it can be captured.
    """
    if device == "cpu":
        began = time.perf_counter()
        call(copies[0])
        one = time.perf_counter() - began
        batch = max(1, min(200, round(4 * SAMPLE_S / max(one, 1e-7))))

        def sample() -> float:
            began = time.perf_counter()
            for step in range(batch):
                call(copies[step % len(copies)])
            return (time.perf_counter() - began) / batch

        return [sample() for _ in range(3 if one > HOPELESS * best_s else SAMPLES)]
    import direct
    import torch

    def between(run: Callable[[], Any]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    one = min(between(lambda: call(copies[-1])) for _ in range(2))
    if one > HOPELESS * best_s and one > 1e-4:
        return [one, *(between(lambda: call(copies[-1])) for _ in range(2))]
    batch = max(1, min(256, round(SAMPLE_S / max(one, 4e-6))))

    def run() -> None:
        for step in range(batch):
            call(copies[step % len(copies)])

    chosen: Callable[[], Any] = run
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graph.replay()
        torch.cuda.synchronize()
        chosen = graph.replay
    except direct.kernel_errors() as error:
        torch.cuda.synchronize()
        print(f"no graph of it, so calls are timed: {direct.reason_of(error)}", file=sys.stderr, flush=True)
    return [between(chosen) / batch for _ in range(SAMPLES)]


def stage_of_error(error: BaseException) -> str:
    """Where a point failed, by what it raised."""
    words = f"{type(error).__name__} {error}".lower()
    return "compile" if any(word in words for word in ("compil", "ptxas", "lowering", "pass manager")) else "launch"


def measure(folder: Path, names: Sequence[str], device: str, until: float) -> None:
    """The measuring process: every point that is not known, in the order of the spaces. Ends at `until` (wall clock).
    A GPU that a kernel has broken answers nothing any more: the process ends, and another goes on.
    """
    import direct
    import torch

    from opforge.backends import cache
    from opforge.backends.shared_code import source_sha256

    registry = load()
    homes = [str(home.path) for home in registry.homes]
    for wanted in [item for item in SPACES if item.name in names]:
        operator = registry.operator(wanted.operator)
        progress = Progress(folder / f"{wanted.name}.jsonl")
        codes = {line["point"]: line for line in _lines(folder / f"{wanted.name}.codes.jsonl")}
        points = points_of(wanted, detect(device))
        order = [place for place in range(len(points)) if place not in progress.known]
        if not order or time.time() >= until:
            continue
        scalars = operator.scalar_values(wanted.scalars)
        torch.manual_seed(7)
        tensors = direct.tensors_for(operator, wanted.axes, wanted.dtype, scalars, device, "contiguous")
        torch_one = next(item for item in registry.implementations(wanted.operator) if item.backend == "torch")
        expected = _copied(_prepared(operator, torch_one, tensors, wanted, scalars, None)(tensors))
        copies = direct.copies_of(tensors)
        measured = {
            line["code"]: line for line in progress.known.values() if line.get("code") and "samples_s" in line
        }  # fmt: skip
        best = min((statistics.median(line["samples_s"]) for line in measured.values()), default=float("inf"))
        for count, place in enumerate(order):
            if time.time() >= until:
                return
            point, facts = points[place], codes.get(place, {})
            said = {"point": place, **{name: value for name, value in facts.items() if name != "point"}}
            twin = measured.get(said.get("code") or "")
            if said.get("refused"):
                progress.tell({**said, "failed": "compile", "reason": said.pop("refused")})
                continue
            if twin is not None:
                progress.tell({**said, "samples_s": twin["samples_s"], "same_as": twin["point"], "first_s": None})
                continue
            progress.tell({"begun": place})
            print("at", wanted.name, place, flush=True)
            folder_of_code = cache.jit_folder(
                homes, point.implementation.backend, source_sha256(point.implementation.source)
            )
            # Triton reads it at every launch
            os.environ["TRITON_CACHE_DIR"] = str(folder_of_code / "triton")
            began = time.perf_counter()
            try:
                call = _prepared(operator, point.implementation, tensors, wanted, scalars, point.config)
                outputs = call(tensors)
                first_s = time.perf_counter() - began
                _spoil(outputs)
                outputs = call(tensors)
                if device == "cuda":
                    torch.cuda.synchronize()
                if not direct.right(outputs, expected, wanted.dtype):
                    progress.tell({**said, "failed": "wrong", "reason": "not what PyTorch computes"})
                    continue
                samples = timed(call, copies, device, best)
            except direct.kernel_errors() as error:
                progress.tell({**said, "failed": stage_of_error(error), "reason": direct.reason_of(error)})
                if device == "cuda" and _broken():
                    return
                continue
            said |= {"samples_s": samples, "first_s": first_s}
            if count % REFERENCE_EVERY == 0:
                said["reference_s"] = statistics.median(
                    _reference(operator, torch_one, tensors, wanted, scalars, device)
                )
            progress.tell(said)
            best = min(best, statistics.median(samples))
            if said.get("code"):
                measured[said["code"]] = said


def _reference(
    operator: Operator, torch_one: Implementation, tensors: Any, wanted: Wanted, scalars: Any, device: str
) -> list[float]:
    call = _prepared(operator, torch_one, tensors, wanted, scalars, None)
    return timed(call, [tensors], device, float("inf"))


def _prepared(operator: Operator, one: Implementation, tensors: Any, wanted: Wanted, scalars: Any, config: Any) -> Any:
    import direct

    call = direct.prepared(operator, one, tensors, wanted.axes, wanted.dtype, scalars, config)
    if isinstance(call, str):
        raise RuntimeError(call)
    return call


def _copied(outputs: Any) -> Any:
    return tuple(one.clone() for one in outputs) if isinstance(outputs, tuple) else outputs.clone()


def _spoil(outputs: Any) -> None:
    for one in outputs if isinstance(outputs, tuple) else (outputs,):
        one.fill_(float("nan"))


def _broken() -> bool:
    import torch

    try:
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError:
        return True
    return False


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
