"""The same kernels on a device that lost a part of itself: with the old choice, and re-tuned for what is left.

    python scripts/degraded.py FOLDER                      # on a GPU: fewer multiprocessors, less bandwidth, caps
    python scripts/degraded.py FOLDER --device cpu         # fewer threads; a process beside that copies memory
    python scripts/degraded.py FOLDER --page               # judge and draw again what was measured

Candidates are the points of a space; of softmax also every other implementation that the registry has, its default and
what is near it. Each condition is real, not computed: something is taken and everything timed again, interleaved, the
roof (PyTorch's product, or a copy of as many bytes) among it. "Re-tuned" is the best of all candidates in that
condition; beside it stands what a search of 16 trials finds that begins with the times from before. Asked is 80 % of
the original speed where the roof kept 80 %, else 95 % of what the roof left: the original speed times how far the roof
fell.
`low_bw` is a device with less bandwidth in earnest, not a descriptor: its optimum stands beside the one from before.
FOLDER/degraded-DEVICE.json holds every time, degraded-DEVICE.html is the page, compilers.log what compilers said: three
files. Exit code 1 where less was recovered.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "scripts"))

import degraded_compile  # noqa: E402
import degraded_gpu  # noqa: E402
from degraded_page import page  # noqa: E402
from degraded_points import of_one_form  # noqa: E402
from space_definitions import SPACES, Variant, Wanted, points_of  # noqa: E402

from opforge.machine import detect  # noqa: E402
from opforge.registry import load  # noqa: E402
from opforge.tuning.compile_queue import processors  # noqa: E402
from opforge.tuning.strategies import Failure, Measured, Trace, strategy  # noqa: E402
from opforge.tuning.strategies.legal import Legal  # noqa: E402

OF_THE_ORIGINAL, OF_THE_ROOF = 0.80, 0.95
TRIALS = 16
TURNS = 9
HOG = "import numpy; a = numpy.ones(1 << 25); b = a.copy()\nwhile True: b[:] = a"
"""Copies 256 MiB again and again: more than any cache holds."""


def judged(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each task and condition: what the old choice, re-tuning and a short search give."""
    rows = []
    for name, task in told["tasks"].items():
        original = task["conditions"]["original"]
        old = original["best"]
        if old is None:
            continue
        before_s = original["seconds"][str(old)]
        for condition, now in task["conditions"].items():
            if condition == "original" or now["best"] is None:
                continue
            new_s, old_s = now["seconds"][str(now["best"])], now["seconds"].get(str(old))
            allowed = original["roof_s"] / now["roof_s"]
            recovery, of_allowed = before_s / new_s, before_s / new_s / allowed
            enough = recovery >= OF_THE_ORIGINAL if allowed >= OF_THE_ORIGINAL else of_allowed >= OF_THE_ROOF
            searched = search(task["labels"], original["seconds"], now["seconds"])
            rows.append(
                {
                    "task": name,
                    "condition": condition,
                    "before_s": before_s,
                    "old_s": old_s,
                    "new_s": new_s,
                    "roof_s": now["roof_s"],
                    "old_refused": now["refused"].get(str(old)),
                    "old_choice": task["labels"][old],
                    "new_choice": task["labels"][now["best"]],
                    "old_recovery": before_s / old_s if old_s else 0.0,
                    "recovery": recovery,
                    "roof_allows": allowed,
                    "of_what_is_left": of_allowed,
                    "of_the_roof_itself": now["roof_s"] / new_s,
                    "searched": new_s / searched if searched else None,
                    "enough": bool(enough),
                }
            )
    return rows


def search(labels: list[dict[str, Any]], before: Mapping[str, float], now: Mapping[str, float]) -> float | None:
    """Seconds of the best that TRIALS trials find, which begin with the times from before; None where all failed."""
    configs = of_one_form(labels)

    def outcome(place: int, seconds: Mapping[str, float]) -> Measured | Failure:
        known = seconds.get(str(place))
        return Measured(seconds=known) if known is not None else Failure(stage="launch")

    trace = Trace(
        origin="before", outcomes=tuple((config, outcome(place, before)) for place, config in enumerate(configs))
    )
    legal = Legal(configs)
    chosen = strategy("model", legal, "degraded", traces=(trace,))
    best = float("inf")
    for _ in range(min(TRIALS, len(configs))):
        for config in chosen.ask(1):
            said = outcome(legal.place[frozenset(config.values)], now)
            chosen.tell(config, said)
            best = min(best, said.seconds if isinstance(said, Measured) else best)
    return best if best < float("inf") else None


def cpu_tasks() -> list[Wanted]:
    """Kernels for a CPU that have a space."""
    heads = {"batch": 1, "kv_heads": 4, "group": 1, "queries": 256, "keys": 256, "head_dim": 64, "value_dim": 64}
    product = next(item for item in SPACES if item.kernel == "matmul_cpp")
    attention = Wanted(
        kernel="attention_cpp", shape="1x4x256x64", operator="attention", axes=heads, scalars={"causal": True},
        dtype="float32", device="cpu", backend="cpp",
        variants=(Variant(implementation="cpp_blocked", space={"ISA": (0,)}),),
    )  # fmt: skip
    return [product, attention]


def cpu_condition(turns: int) -> dict[str, Any]:
    """Of this process as it was started: every candidate's seconds and the roof's, all in turn."""
    import direct
    import torch

    told = {}
    for task in cpu_tasks():
        registry = load()
        operator = registry.operator(task.operator)
        scalars = operator.scalar_values(task.scalars)
        tensors = direct.tensors_for(operator, task.axes, task.dtype, scalars, "cpu", "contiguous")
        eager = next(item for item in registry.implementations(task.operator) if item.backend == "torch")
        roof = direct.prepared(operator, eager, tensors, task.axes, task.dtype, scalars)
        answer = roof(tensors)
        if task.operator == "matmul":
            out = torch.empty_like(answer)
            calls: dict[Any, Any] = {"roof": lambda given, out=out: torch.matmul(*given, out=out)}
        else:
            calls = {"roof": roof}
        refused: dict[str, str] = {}
        for place, point in enumerate(points_of(task, detect("cpu"))):
            try:
                call = direct.prepared(
                    operator, point.implementation, tensors, task.axes, task.dtype, scalars, point.config
                )
                if isinstance(call, str) or not direct.right(call(tensors), answer, task.dtype):
                    refused[str(place)] = call if isinstance(call, str) else "not what PyTorch computes"
                    continue
                calls[place] = call
            except direct.kernel_errors() as error:
                refused[str(place)] = direct.reason_of(error)
        seconds = direct.interleaved(calls, direct.copies_of(tensors)[:2], "cpu", turns=turns).seconds
        told[task.name] = {"seconds": seconds, "refused": refused}
    return told


def on_cpu(folder: Path, turns: int) -> dict[str, Any]:
    """The four conditions, each in a process of its own."""
    known = processors()
    conditions = {
        "original": f"{known} threads, nothing beside",
        "half the threads": f"{max(1, known // 2)} of {known} threads",
        "a memory hog": "one more process copies 256 MiB again and again",
        "low_bw": f"{known} more processes copy 256 MiB again and again",
    }
    told: dict[str, Any] = {"conditions": conditions, "tasks": {}}
    runs = {}
    for name in conditions:
        threads = max(1, known // 2) if name == "half the threads" else known
        beside = {"a memory hog": 1, "low_bw": known}.get(name, 0)
        hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(beside)]
        try:
            said = subprocess.run(
                [sys.executable, __file__, str(folder), "--cpu-condition", "--turns", str(turns)],
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        runs[name] = json.loads(said.splitlines()[-1])
        print(f"{name}: measured", flush=True)
    for task in cpu_tasks():
        points = points_of(task, detect("cpu"))
        of_task: dict[str, Any] = {}
        for name, run in runs.items():
            seconds = dict(run[task.name]["seconds"])
            roof_s = seconds.pop("roof")
            best = int(min(seconds, key=lambda place: seconds[place])) if seconds else None
            of_task[name] = {
                "roof_s": roof_s, "seconds": seconds, "best": best, "refused": run[task.name]["refused"]
            }  # fmt: skip
        told["tasks"][task.name] = {
            "labels": [dict(point.label) for point in points],
            "roof": "PyTorch's",
            "conditions": of_task,
        }
    return told


def main() -> int:
    """What the words above say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds on a GPU, about")
    parser.add_argument("--jobs", type=int, default=processors(), help="compilers at once")
    parser.add_argument("--turns", type=int, default=TURNS, help="of all candidates on a CPU; 1 for a look")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--compile-share", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--cpu-condition", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile_share:
        degraded_compile.compile_share(*given.compile_share, given.device)
        return 0
    if given.cpu_condition:
        print(json.dumps(cpu_condition(given.turns)))
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if not given.page:
        told = (
            on_cpu(given.folder, given.turns)
            if given.device == "cpu"
            else degraded_gpu.measured(given.folder, Path(__file__).resolve(), given.jobs, given.limit)
        )
        told["device"], told["day"] = detect(given.device).name, time.strftime("%Y-%m-%d", time.gmtime())
        file = given.folder / f"degraded-{told['device']}.json"
        file.write_text(json.dumps(told, indent=1), encoding="utf-8")
    files = sorted(given.folder.glob("degraded-*.json"))
    if not files:
        parser.error(f"{given.folder} holds no degraded-DEVICE.json; measure first, without --page")
    good = True
    for file in files:
        told = json.loads(file.read_text(encoding="utf-8"))
        rows = judged(told)
        good = good and all(row["enough"] for row in rows)
        file.with_suffix(".html").write_text(page(told, rows), encoding="utf-8")
        print(f"{told['device']}, {told['day']}")
        for row in rows:
            old = f"{row['old_recovery']:.2f}" if row["old_s"] else "refused"
            print(
                f"  {row['task']}, {row['condition']}: of the original speed {old} with the old choice, "
                f"{row['recovery']:.2f} re-tuned; the roof allows {row['roof_allows']:.2f}: "
                f"{row['of_what_is_left']:.2f} of that" + ("" if row["enough"] else "  NOT ENOUGH")
            )
        shares = [row["searched"] for row in rows if row["searched"]]
        if shares:
            print(f"  {TRIALS} trials that begin with the old times find {statistics.mean(shares):.3f} of the best")
    print(f"({time.monotonic() - began:.0f} s)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
