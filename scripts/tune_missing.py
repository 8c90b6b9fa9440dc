"""Which tuned choices of a device are missing or stale, and a slice of the tuning that makes them.

python scripts/tune_missing.py                              a line for each operator, dtype and workload; nothing runs
python scripts/tune_missing.py --run --limit 540            on a GPU: tunes what is missing, most used operators first
python scripts/tune_missing.py --run --gpus 4                           on four GPUs, a search at a time on each
python scripts/tune_missing.py --run --device cpu --operator matmul --limit 60        the same on a CPU
python scripts/tune_missing.py --run --near 1.5 --known nvidia-h200     searches alone what the records say may win

Wanted are every operator, in bfloat16, float16 and float32 as far as it has them, at its two workloads with the most
work (on a CPU those for laptops). A choice stands where it is of the program that is there now. A slice goes on where
the last one ended: what was chosen is passed over, and a search that was cut off has its journal. The two workloads of
an operator and dtype are one process, which gets --each seconds for each of them at most. With --near 1.5 an
implementation whose least time on record for each of these workloads, on the device or on --known, is more than 1.5
times that of the fastest is not searched: its default would have to gain that much. Who has no time is searched. Exit
code 1 where something is missing still.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from opforge.backends.program_hash import is_of  # noqa: E402
from opforge.core.definition.implementation import COMPARED_AS_IS, COMPARED_WITH  # noqa: E402
from opforge.core.definition.operator import Operator, Workload  # noqa: E402
from opforge.core.language import units  # noqa: E402
from opforge.machine import detect  # noqa: E402
from opforge.registry import Registry, load  # noqa: E402
from opforge.registry.tuned_choices import choice_for, shipped_path  # noqa: E402
from opforge.store import Store  # noqa: E402

DTYPES = ("bfloat16", "float16", "float32")
CPU_BACKENDS = ("cpp",)
LARGEST = 2
SHOWN = 2
LEAST_S = 20.0
"""With less time left no search is begun."""
ROOM = 40
"""How many times what a call moves a search takes of a device at its peak: its operands, their truth in float64, a copy
for each kernel that may still win, and judging. (Three of bias_add's seed_high_rank, 1 GB each, filled an H100's 80 GB
and waited for each other; dropout's t5_11b_ff beside two of them found no room on an H200.)
"""
SQUARE, SQUARE_BYTES = "attention", 80 * 10**9
"""A family whose truth has a square of scores in float64, and what its searches may take, whatever they move: gradients
over 16384 keys took 78 GB.
"""


@dataclass(frozen=True)
class Cell:
    """One search: what `opforge tune` is asked for. `state` is "chosen", "stale" or "missing"."""

    operator: str
    dtype: str
    workload: str
    state: str

    @property
    def words(self) -> str:
        return f"{self.operator} {self.dtype} {self.workload}"


def work(operator: Operator, workload: Workload, dtype: str) -> float:
    """Bytes and operations of a workload, in one number for ordering."""
    cost = operator.cost(workload.axes, dtype, operator.scalar_values(workload.scalars))
    return float(max(cost.bytes, cost.flops))


def cells(registry: Registry, device: str, cpu: bool, operators: Sequence[str]) -> list[Cell]:
    """Every search that is wanted on a device (by its descriptor's name), most used operators first."""
    found = []
    known = map(registry.operator, operators or registry.names())
    for operator in sorted(known, key=lambda operator: (not operator.used, operator.name)):
        name = operator.name
        tunable = [
            item
            for item in registry.implementations(name)
            if item.backend not in COMPARED_AS_IS and item.space and (item.backend in CPU_BACKENDS) == cpu
        ]
        for dtype in [dtype for dtype in DTYPES if dtype in operator.dtypes] or operator.dtypes[:1]:
            # what no implementation with a space computes in this dtype has nothing to be tuned
            if not any(dtype in (item.dtypes or operator.dtypes) for item in tunable):
                continue
            fitting = [item for item in operator.workloads if item.scale == ("laptop" if cpu else "gpu")]
            for workload in sorted(fitting, key=lambda item: -work(operator, item, dtype))[:LARGEST]:
                found.append(Cell(name, dtype, workload.name, state(registry, operator, workload, dtype, device)))
    return found


def state(registry: Registry, operator: Operator, workload: Workload, dtype: str, device: str) -> str:
    """Whether a choice is there, and of today's program."""
    scalars = operator.scalar_values(workload.scalars)
    form, kind = operator.compute_dtype_of(dtype, scalars), operator.kind_of_call(scalars)
    axes = operator.completed(workload.axes, scalars)
    chosen = choice_for(shipped_path(operator, device), form, axes, kind)
    if chosen is None:
        return "missing"
    known = {item.name: item for item in registry.implementations(operator.name)}
    item = known.get(chosen.implementation)
    return "chosen" if item is not None and is_of(item, chosen.source_sha256, chosen.code_sha256) else "stale"


@dataclass(frozen=True)
class Search:
    """What one process is asked for: cells of one operator and dtype."""

    operator: str
    dtype: str
    workloads: tuple[str, ...]
    implementations: tuple[str, ...] = ()

    def command(self, device: str, limit_s: float, trials: int, budget_s: float) -> list[str]:
        """Of `opforge tune`."""
        asked = [
            sys.executable,
            "-m",
            "opforge",
            "tune",
            self.operator,
            "--into",
            "package",
            "--device",
            device,
            "--dtype",
            self.dtype,
        ]
        asked += [word for name in self.workloads for word in ("--workload", name)]
        asked += [word for name in self.implementations for word in ("--implementation", name)]
        return [*asked, "--limit", f"{limit_s:.0f}", "--trials", f"{trials}", "--budget", f"{budget_s}", "--json"]


def searches(wanted: Sequence[Cell]) -> list[Search]:
    """The cells by operator and dtype, in their order: one process imports and verifies for all of these."""
    names: dict[tuple[str, str], list[str]] = {}
    for cell in wanted:
        names.setdefault((cell.operator, cell.dtype), []).append(cell.workload)
    return [Search(operator, dtype, tuple(found)) for (operator, dtype), found in names.items()]


def near(store: Store, registry: Registry, search: Search, device: str, ratio: float) -> tuple[str, ...]:
    """The implementations that may win a search by the records: each by its times at the search's workloads in its
    dtype, where it has none there by those in another, else by those at any workload. Who was slower than `ratio` times
    the fastest at all of them is left out. Who has no time at all is not: an untried kernel may be the best.
    The least of an implementation's times counts, since the newest may be of a slow point of a search.
    """
    known = {item.name: item for item in registry.implementations(search.operator) if item.backend not in COMPARED_WITH}
    least: dict[tuple[str, str], dict[str, float]] = {}
    for entry in store.series(search.operator, device=device, timed=True):
        if entry.implementation in known and entry.median_s is not None and not entry.suspect:
            times = least.setdefault((entry.workload, entry.dtype), {})
            times[entry.implementation] = min(entry.median_s, times.get(entry.implementation, entry.median_s))
    steps = (
        [(name, search.dtype) for name in search.workloads],
        [place for place in least if place[0] in search.workloads],
        list(least),
    )

    def may_win(name: str) -> bool:
        for places in steps:
            behind = [times[name] / min(times.values()) for times in map(least.get, places) if times and name in times]
            if behind:
                return min(behind) <= ratio
        return True

    return tuple(filter(may_win, known))


def run(wanted: Sequence[Cell], given: argparse.Namespace) -> None:
    """Tune until the time is up, --beside searches on each GPU: they measure one at a time, and compile and verify
    together. A search that fails is said and costs no other.
    """
    began, registry = time.monotonic(), load()
    device = detect(given.device)
    most = device.memory_bytes
    todo: list[tuple[Search, int]] = []
    with Store.open(None) as store:
        for one in searches(wanted):
            names = near(store, registry, one, given.known or device.name, given.near) if given.near else ()
            todo.append((replace(one, implementations=names), room(registry, one, most)))
    hands = [gpu for gpu in range(given.gpus) for _ in range(given.beside)]
    turn, held = threading.Condition(), Counter[int]()
    over: list[Search] = []

    def next_for(gpu: int) -> tuple[Search, int] | None:
        """The next that has room beside what runs on a GPU, once one does; None where none is left."""
        with turn:
            while todo:
                fits = (at for at, (_, much) in enumerate(todo) if not held[gpu] or held[gpu] + much <= most)
                place = next(fits, None)
                if place is not None:
                    held[gpu] += todo[place][1]
                    return todo.pop(place)
                turn.wait()
            return None

    def done(gpu: int, much: int) -> None:
        with turn:
            held[gpu] -= much
            turn.notify_all()

    def work(gpu: int) -> None:
        while (found := next_for(gpu)) is not None:
            one, much = found
            left = given.limit - (time.monotonic() - began)
            if left < LEAST_S:
                over.append(one)
                done(gpu, much)
                continue
            # a search may take a tenth longer than it is given, and its processes some seconds to end
            share = min(given.each * len(one.workloads), (left - LEAST_S / 2) / 1.1)
            command = one.command(given.device, share, given.trials, given.budget)
            begun = time.monotonic()
            told = finished([*command, "--jobs", f"{given.jobs}"], gpu if given.gpus > 1 else None, left)
            now = time.monotonic()
            head = f"{now - began:6.1f} s  {one.operator} {one.dtype} ({now - begun:.0f} s"
            head += f" on GPU {gpu})" if given.gpus > 1 else ")"
            print("\n".join(f"{head} {line}" for line in told), flush=True)
            done(gpu, much)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in hands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if over:
        print(f"not begun for want of time: {len(over)} searches", flush=True)


def room(registry: Registry, search: Search, most: int) -> int:
    """Bytes of a device's memory, of which there are `most`, that a search may take: see ROOM and SQUARE."""
    operator = registry.operator(search.operator)
    moved = max(
        operator.cost(item.axes, search.dtype, operator.scalar_values(item.scalars)).bytes
        for item in operator.workloads
        if item.name in search.workloads
    )
    return min(most, max(ROOM * moved, SQUARE_BYTES if registry.family(operator.name) == SQUARE else 1))


def finished(command: Sequence[str], gpu: int | None, left_s: float) -> list[str]:
    """What a search came to, a line for each workload. One that is not through in time is asked to end, and keeps what
    it found, as its journal does.
    """
    environment = {**os.environ, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)})}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    words = ""
    try:
        out, err = process.communicate(timeout=left_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        words = "cut off: "
        try:
            out, err = process.communicate(timeout=LEAST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    try:
        said = json.loads(out)
        told = [f"{words}{line(tuned)}" for tuned in said["tuned"]] or [f"{words}nothing was tuned"]
        failed = {
            f"{item['implementation']}: {item['reason']}" for item in said["trials"] if item["outcome"] == "failed"
        }
        return [*told, *(f"  failed: {reason[:160]}" for reason in sorted(failed)[:SHOWN])]
    except (ValueError, KeyError):
        last = (err or out).strip().splitlines()[-1:]
        return [f"{words}failed ({process.returncode}): {''.join(last)}"]


def line(tuned: Mapping[str, Any]) -> str:
    """One workload's choice, or why there is none, of what `opforge tune --json` prints."""
    points = f"{tuned['timed'] + tuned['slower']} points"
    if tuned["failed"]:
        points += f", {tuned['failed']} failed"
    if tuned["median_s"] is None:
        return f"{tuned['workload']}: no choice ({points}); {tuned['why']}"
    config = ", ".join(f"{name}={value}" for name, value in tuned["config"].items())
    gain = f", {units.ratio(1 / tuned['over_default'])} its default" if tuned["over_default"] else ""
    kept = "" if tuned["kept"] else f"; {tuned['why']}"
    chosen = f"{tuned['implementation']} [{config or 'default'}] {units.seconds(tuned['median_s'])}"
    return f"{tuned['workload']}: {chosen}{gain} ({points}){kept}"


def main() -> int:
    """What the words above say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--descriptor", help="whose choices are looked at (default: nvidia-h200; with --run: this one)")
    parser.add_argument("--operator", action="append", default=[], help="these alone")
    parser.add_argument("--run", action="store_true", help="tune what is missing or stale")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds of the slice")
    parser.add_argument("--each", type=float, default=25.0, help="seconds for each workload of a search at most")
    parser.add_argument("--trials", type=int, default=12, help="points of each implementation at most")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of measuring for each point")
    parser.add_argument("--near", type=float, default=0.0, metavar="RATIO", help="see above; 0: search all")
    parser.add_argument(
        "--known", default="", metavar="DEVICE", help="whose times --near goes by (default: the device)"
    )
    parser.add_argument("--gpus", type=int, default=1, help="so many devices side by side")
    parser.add_argument("--beside", type=int, default=1, help="so many searches at once on each")
    parser.add_argument("--jobs", type=int, default=0, help="compilers of each search; 0: as opforge tune has it")
    given = parser.parse_args()
    cpu = given.device == "cpu"
    device = given.descriptor or (detect(given.device).name if given.run or cpu else "nvidia-h200")
    registry = load()
    wanted = cells(registry, device, cpu, given.operator)
    if given.run:
        run([cell for cell in wanted if cell.state != "chosen"], given)
        wanted = cells(registry, device, cpu, given.operator)
    else:
        for cell in wanted:
            print(f"  {cell.state:8}{cell.words}")
    count = Counter(cell.state for cell in wanted)
    print(f"{device}: {len(wanted)} choices wanted; " + ", ".join(f"{count[word]} {word}" for word in sorted(count)))
    return int(count["chosen"] < len(wanted))


if __name__ == "__main__":
    sys.exit(main())
