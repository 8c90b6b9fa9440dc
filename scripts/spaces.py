"""Spaces of opforge's own kernels measured whole, as data for searches: every legal point, also those that fail.

    python scripts/spaces.py FOLDER --limit 190                     # on a GPU: Triton's spaces, the most wanted first
    python scripts/spaces.py FOLDER --only matmul_tilelang --limit 60
    python scripts/spaces.py FOLDER --compile-only --sample 32      # no GPU: what compiling would take
    python scripts/tuning.py FOLDER                                 # searches replayed over what was measured

The points are those of scripts/space_definitions.py. All of a run are compiled first, on all processors, into the
folder that kernels are loaded from; then one process measures them one after another, beside nothing. A point is
checked against PyTorch before it counts: on outputs that were filled with NaN. Points with the same code are measured
once. FOLDER/NAME.jsonl is the journal: run the same command again and it goes on, a point that took its process along
is a failure. FOLDER/NAME@DEVICE_SHAPE.json.gz is T4, with registers, stack, shared memory and threads of each point;
"complete" says whether every point is in it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "scripts"))

from space_definitions import SPACES, Point, Wanted, points_of  # noqa: E402
from space_measuring import Progress, measure  # noqa: E402

from opforge.machine import descriptors, detect  # noqa: E402
from opforge.registry import load  # noqa: E402
from opforge.tuning.codes import Codes  # noqa: E402
from opforge.tuning.compile_queue import LATER, Compilers, processors  # noqa: E402

STUCK_S = 30.0
"""Without a word for so long the measuring process is killed, and the point that it was at has failed."""
FOR_COMPILING = 0.6
"""Share of --limit after which nothing more is compiled ahead."""


def submitted(
    wanted: Wanted, points: Mapping[int, Point], device: str, target: str, compilers: Compilers
) -> dict[int, Codes]:
    """Hand all points to the compilers; where the code of each place will be known."""
    registry = load()
    scalars = registry.operator(wanted.operator).scalar_values(wanted.scalars)
    made: dict[str, Codes] = {}
    for point in points.values():
        name = point.implementation.name
        if name not in made:
            mine = [item.config for item in points.values() if item.implementation.name == name]
            # a process imports its toolchain once for all its points: as many processes as processors, or few rounds
            together = max(1, min(48, -(-len(mine) // compilers.jobs)))
            made[name] = Codes(
                registry,
                point.implementation,
                wanted.axes,
                wanted.dtype,
                scalars,
                device,
                target,
                compilers,
                together=together,
            )
            made[name].ahead(mine, LATER)
    return {place: made[point.implementation.name] for place, point in points.items()}


def collected(points: Mapping[int, Point], codes: Mapping[int, Codes], until: float) -> list[dict[str, Any]]:
    """What the compiler made of each point, in plain data; what is not known by `until` is left out."""
    lines = []
    for place, point in points.items():
        if time.monotonic() < until or codes[place].known(point.config):
            code = codes[place].of(point.config, lambda: time.monotonic() >= until)
            reason = getattr(code, "reason", None)
            lines.append({"point": place, **({"refused": reason} if reason else facts_of(code))})
    return lines


def facts_of(code: Any) -> dict[str, Any]:
    """Of a CompiledCode in plain data."""
    use = getattr(code, "use", None)
    return {
        "code": getattr(code, "sha256", None),
        "stack_bytes": getattr(code, "stack_bytes", None),
        **({name: getattr(use, name) for name in ("registers", "shared_bytes", "threads", "blocks")} if use else {}),
    }


def supervise(folder: Path, names: Sequence[str], device: str, until: float) -> None:
    """Run measuring processes until every point is known or the time is up."""
    while time.time() < until:
        left = [name for name in names if _unknown(folder, name, device)]
        if not left:
            return
        words = ["--measure", "--only", *left, "--device", device, "--until", str(until)]
        child = subprocess.Popen(
            [sys.executable, __file__, str(folder), *words], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        said: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_listen, args=(child, said), daemon=True).start()
        at: tuple[str, int] | None = None
        why = ""
        while True:
            try:
                line = said.get(timeout=STUCK_S)
            except queue.Empty:
                why = f"no answer within {STUCK_S:.0f} s"
                os.killpg(child.pid, signal.SIGKILL)
                continue
            if line is None:
                break
            at = (line.split()[1], int(line.split()[2]))
        code = child.wait()
        if at is not None:
            progress = Progress(folder / f"{at[0]}.jsonl")
            if progress.begun is not None:
                stage = "slow" if why else "launch"
                progress.tell({"point": progress.begun, "failed": stage, "reason": why or f"the process ended, {code}"})
        elif code != 0:
            raise SystemExit(f"The measuring process ended with {code} before its first point; see its words above.")


def _listen(child: Any, said: queue.Queue[str | None]) -> None:
    with child.stdout:
        for line in child.stdout:
            if line.startswith("at "):
                said.put(line)
    said.put(None)


def _unknown(folder: Path, name: str, device: str) -> list[int]:
    wanted = next(item for item in SPACES if item.name == name)
    known = Progress(folder / f"{name}.jsonl").known
    return [place for place in range(len(points_of(wanted, detect(device)))) if place not in known]


def t4(wanted: Wanted, points: Sequence[Point], known: Mapping[int, dict[str, Any]], device: str) -> dict[str, Any]:
    """T4 1.0.0. Times in ms; what is beside the schema stands under "opforge"."""
    results = []
    for place, point in enumerate(points):
        line = known.get(place)
        if line is None:
            continue
        failed = line.get("failed")
        samples = [round(1e3 * sample, 6) for sample in line.get("samples_s", ())]
        kinds = {"compile": "compile", "launch": "runtime", "wrong": "correctness", "slow": "timeout", None: "correct"}
        uses = ("registers", "stack_bytes", "shared_bytes", "threads", "blocks")
        own = {name: line[name] for name in ("same_as", "reason", "first_s") if line.get(name) is not None}
        results.append(
            {
                "configuration": dict(point.label),
                "objectives": ["time"],
                "times": {"runtimes": samples},
                "invalidity": kinds[failed],
                "correctness": 0.0 if failed == "wrong" else 1.0,
                "measurements": [
                    *([{"name": "time", "value": statistics.median(samples), "unit": "ms"}] if samples else ()),
                    *(
                        {"name": name, "value": line[name], "unit": "bytes" if name.endswith("bytes") else ""}
                        for name in uses
                        if line.get(name) is not None
                    ),
                ],
                "opforge": own,
            }
        )
    drift = [line["reference_s"] for line in known.values() if "reference_s" in line]
    return {
        "schema_version": "1.0.0",
        "metadata": {
            "operator": wanted.operator,
            "implementations": [variant.implementation for variant in wanted.variants],
            "axes": {name: list(size) if isinstance(size, tuple) else size for name, size in wanted.axes.items()},
            "dtype": wanted.dtype,
            "scalars": dict(wanted.scalars),
            "device": device,
            "complete": len(results) == len(points),
            "points": len(points),
            "reference": "PyTorch's eager time beside every fortieth point, seconds",
            "reference_s": [round(value, 9) for value in drift],
        },
        "results": results,
    }


def main() -> int:
    """What the words above say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="spaces whose names begin so")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--limit", type=float, default=190.0, help="seconds for everything")
    parser.add_argument("--jobs", type=int, default=processors(), help="compilers at once")
    parser.add_argument("--compile-only", action="store_true", help="for sm_90a; needs no GPU")
    parser.add_argument("--sample", type=int, default=0, help="with --compile-only: so many points of each space")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    chosen = [
        item
        for item in SPACES
        if item.device == given.device
        and (any(item.name.startswith(word) for word in given.only) if given.only else item.backend != "tilelang")
    ]
    if not chosen:
        parser.error(f"no space begins so on {given.device}; there are {', '.join(item.name for item in SPACES)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.measure:
        measure(given.folder, [item.name for item in chosen], given.device, given.until)
        return 0
    began = time.monotonic()
    here = descriptors()["nvidia-h200"] if given.compile_only and given.device == "cuda" else detect(given.device)
    compilers = Compilers(given.jobs)
    try:
        waiting = []
        for wanted in chosen:
            points = points_of(wanted, here)
            known = Progress(given.folder / f"{wanted.name}.jsonl").known
            left = {place: point for place, point in enumerate(points) if place not in known}
            if given.sample:
                step = max(1, len(left) // given.sample)
                left = dict(list(left.items())[::step][: given.sample])
            waiting.append((wanted, points, left, submitted(wanted, left, given.device, here.target, compilers)))
        for wanted, points, left, codes in waiting:
            lines = collected(left, codes, began + FOR_COMPILING * given.limit)
            (given.folder / f"{wanted.name}.codes.jsonl").write_text(
                "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
            )
            made = [line["code"] for line in lines if line.get("code")]
            print(
                f"{wanted.name}: {len(points)} legal points, {len(left)} to compile, {len(made)} compiled to "
                f"{len(set(made))} codes by {time.monotonic() - began:.0f} s",
                flush=True,
            )
    finally:
        compilers.close()
    if given.compile_only:
        return 0
    supervise(
        given.folder,
        [item.name for item in chosen],
        given.device,
        time.time() + given.limit - (time.monotonic() - began),
    )
    whole = True
    for wanted in chosen:
        points, known = points_of(wanted, here), Progress(given.folder / f"{wanted.name}.jsonl").known
        if not known:
            continue
        data = t4(wanted, points, known, here.name)
        file = given.folder / f"{wanted.kernel}@{here.name}_{wanted.shape}.json.gz"
        file.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))
        times = [statistics.median(line["samples_s"]) for line in known.values() if "samples_s" in line]
        failures = [line["failed"] for line in known.values() if "failed" in line]
        whole = whole and data["metadata"]["complete"]
        kinds = ", ".join(f"{failures.count(kind)} {kind}" for kind in sorted(set(failures)))
        best = f"{1e6 * min(times):.1f} us at best, {1e6 * statistics.median(times):.1f} median" if times else "no time"
        print(f"{file.name}: {len(known)} of {len(points)} points, {best}" + (f"; failed: {kinds}" if kinds else ""))
    print(f"({time.monotonic() - began:.0f} s)" + ("" if whole else "; not complete: run it again"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
