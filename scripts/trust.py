"""Measures whether opforge's verdicts, gate, histories and records can be trusted, and fails where they can't.

    python scripts/trust.py            every figure in full (more than half an hour on two quiet cores)
    python scripts/trust.py --quick    the same figures on smaller numbers, for CI (two to three minutes)
    python scripts/trust.py --only aa  the figures whose name contains "aa"
    python scripts/trust.py --parts FOLDER --limit 120
                                       what has not been asked yet, for two minutes; exit code 75 while some is left

Each line is one figure: what was asked for, what was found, how long it took.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from opforge.core.evidence.record import Record

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "scripts")]
# worker processes must find opforge where it is not installed
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
# one thread: the figures are about verdicts, and threads that wait for each other on busy cores are another subject
os.environ.setdefault("OMP_NUM_THREADS", "1")
from trust_page import page  # noqa: E402 - likewise
from trust_parts import PARTS, PAUSED, Paused  # noqa: E402 - found by the path above

HANG_S = 20
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    name: str
    wanted: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Scale:
    """How often each thing is done."""

    same: int = 300
    workers: int = 40
    slower: int = 100
    gates: int = 20
    gate_cases: int = 100
    histories: int = 200
    kills: int = 500
    writes: int = 250
    entries: int = 200
    bad_inputs: int = 5000
    records: int = 1_000_000


QUICK = Scale(
    same=60,
    workers=3,
    slower=30,
    gates=1,
    gate_cases=60,
    histories=100,
    kills=25,
    writes=20,
    entries=60,
    bad_inputs=500,
    records=20_000,
)


class Kernel:
    """A real kernel of a few microseconds, batched as a comparison batches; it can be told to do more work."""

    def __init__(self) -> None:
        import numpy as np

        from opforge.timing import Rule

        x = np.random.default_rng(0).random(2000, dtype=np.float32)
        y = np.empty_like(x)
        self.call = lambda: np.multiply(x, 1.5, out=y)
        self.run(2000)
        started = time.perf_counter()
        self.run(2000)
        # a hundred calls at least, so that 3 % more work can be added
        self.batch = max(100, math.ceil(Rule().sample_s * 2000 / (time.perf_counter() - started)))

    def run(self, count: int) -> None:
        for _ in range(count):
            self.call()

    def taker(self, slower: float = 0.0) -> Callable[[], float]:
        """A sample of one batch, in seconds per call; `slower` is the share of work that is added."""
        count = round(self.batch * (1 + slower))

        def take() -> float:
            started = time.perf_counter()
            self.run(count)
            return (time.perf_counter() - started) / self.batch

        return take


def _spin(seconds: float) -> None:
    end, parent = time.monotonic() + seconds, os.getppid()
    # a run that is cut off leaves nobody behind who keeps a processor
    while time.monotonic() < end and os.getppid() == parent:
        sum(range(1000))


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that do nothing but work."""
    workers = [multiprocessing.Process(target=_spin, args=(3600,), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def verdicts(kernel: Kernel, count: int, slower: float) -> tuple[Counter[str], int, float]:
    """The words of `count` comparisons, how many were SLOWER within half a second of measuring, and the median time
    spent.
    """
    from opforge.core.evidence.comparison import SLOWER
    from opforge.timing import Rule, compare_while_sampling

    words: Counter[str] = Counter()
    soon, spent = 0, []
    for _ in range(count):
        found = compare_while_sampling("a", "b", kernel.taker(slower), kernel.taker(), Rule())
        words[found.outcome] += 1
        soon += found.outcome == SLOWER and found.spent_s <= 0.5
        spent.append(found.spent_s)
    return words, soon, sorted(spent)[len(spent) // 2]


def same_code(scale: Scale) -> Iterator[Figure]:
    kernel = Kernel()
    for name, processes in (("A/A quiet", 0), ("A/A with two load processes", 2)):

        def take(processes: int = processes) -> tuple[Counter[str], int, float]:
            with load(processes):
                return verdicts(kernel, scale.same, 0.0)

        counts, _, spent = PARTS.part(name, take)
        words = Counter(counts)
        alarms = words["FASTER"] + words["SLOWER"]
        yield Figure(
            name,
            f"0 alarms of {scale.same}",
            f"{alarms} ({words['SAME']} SAME, {words['UNSURE']} UNSURE, {spent:.2f} s each)",
            alarms == 0,
        )


def real_workers(scale: Scale) -> Iterator[Figure]:
    """The whole of `opforge compare`: operators against themselves, each side in worker processes of its own. Most
    often a small one, whose outputs are judged at once; one time in four the softmax, where a quarter of a second goes
    into each judgement.
    """
    from opforge.core.evidence.comparison import FASTER, SLOWER
    from opforge.registry import load as registry_of
    from opforge.runner import Isolated
    from opforge.timing import Plan
    from opforge.workbench import compare_sides, parse_side
    from simulated import make_home

    words: Counter[str] = Counter()
    reasons: list[str] = []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Isolated() as host:
        registry = registry_of([make_home(Path(folder))])
        for text, count in (
            ("twice:torch_eager", scale.workers - scale.workers // 4),
            ("softmax:torch_eager", scale.workers // 4),
        ):
            side = parse_side(text)
            workload = next(item for item in registry.operator(side.operator).workloads if item.scale == "laptop")
            for outcome in compare_sides(
                registry, side, side, host, dtypes=("float32",), workloads=(workload,) * count, plan=Plan(budget_s=2.0)
            ):
                if outcome.comparison is None:
                    reasons.append(outcome.reason)
                else:
                    words[outcome.comparison.outcome] += 1
    each = (time.perf_counter() - started) / scale.workers
    alarms = words[FASTER] + words[SLOWER]
    found = (
        f"{alarms} ({words['SAME']} SAME, {words['UNSURE']} UNSURE, {each:.1f} s each with verification and audit)"
        + "".join(f"\n    {reason}" for reason in reasons[:3])
    )
    yield Figure("A/A between worker processes", f"0 alarms of {scale.workers}", found, alarms == 0 and not reasons)


def slow_downs(scale: Scale) -> Iterator[Figure]:
    kernel = Kernel()
    for slower, share in ((0.03, 0.90), (0.05, 0.95), (0.10, 0.99)):
        words, soon, spent = verdicts(kernel, scale.slower, slower)
        found = (
            f"{soon} of {scale.slower} within 0.5 s ({words['SLOWER']} in all, {words['FASTER']} of wrong sign, "
            f"{spent:.2f} s each)"
        )
        yield Figure(
            f"A/B +{slower:.0%}",
            f">= {share:.0%}, no wrong sign",
            found,
            soon >= share * scale.slower and words["FASTER"] == 0,
        )


def gates(scale: Scale) -> Iterator[Figure]:
    from opforge.gate import Policy, SeriesKey, Sight, check, settled_for
    from opforge.timing import Rule, compare_while_sampling

    kernel = Kernel()
    policy = Policy()
    keys = [
        SeriesKey(operator="noop", implementation="same", workload=f"case {number}", dtype="float32")
        for number in range(scale.gate_cases)
    ]

    def look(asked: object) -> dict[SeriesKey, Sight]:
        return {
            key: Sight(
                comparison=compare_while_sampling(
                    "now", "then", kernel.taker(), kernel.taker(), Rule(), settled=settled_for(policy.allowed)
                )
            )
            for key in asked
        }  # type: ignore[attr-defined]

    raised = [
        PARTS.part(f"gate {number + 1}", lambda: check("unchanged", keys, look, policy).exit_code)
        for number in range(scale.gates)
    ]
    count = sum(code != 0 for code in raised)
    yield Figure(
        f"gate of {scale.gate_cases} unchanged cases",
        "at most 1 run in 20 raises anything",
        f"{count} of {scale.gates}",
        count <= max(0, scale.gates // 20),
    )


def simulated(generator: random.Random, noise: float, step: float) -> list[float]:
    """80 commits, 3 % of points spiked by 30 %, a step at commit 50; logarithms of times."""
    return [
        math.log(
            (1 + (step if at >= 50 else 0))
            * math.exp(generator.gauss(0, noise))
            * (1.3 if generator.random() < 0.03 else 1)
        )
        for at in range(80)
    ]


def histories(scale: Scale) -> Iterator[Figure]:
    from opforge.gate import segments

    for noise in (0.01, 0.03):
        generator = random.Random(f"trust {noise}")
        alarms = sum(len(segments(simulated(generator, noise, 0.0), smallest=0.02)) > 1 for _ in range(scale.histories))
        yield Figure(
            f"flat histories, noise {noise:.0%}",
            f"alarms in <= 2% of {scale.histories}",
            str(alarms),
            alarms <= 0.02 * scale.histories,
        )
        hits = 0
        for _ in range(scale.histories):
            hits += any(
                abs(part.start - 50) <= 3 for part in segments(simulated(generator, noise, 0.1), smallest=0.02)[1:]
            )
        yield Figure(
            f"+10% steps, noise {noise:.0%}",
            f">= 98% of {scale.histories} within 3 commits",
            str(hits),
            hits >= 0.98 * scale.histories,
        )


def impossible(_: Scale) -> Iterator[Figure]:
    from opforge.core.definition.device import Ceiling
    from opforge.core.definition.operator import Cost
    from opforge.core.evidence.timing import Timing
    from opforge.machine import descriptors
    from opforge.roofline import suspect

    def ceiling(name: str, value: float, unit: str) -> Ceiling:
        return Ceiling(name=name, value=value, unit=unit, measured_at="2026-01-01", how="stated")

    memory, matrix, launch = 4.0e12, 700e12, 2e-6
    spec = replace(
        descriptors()["nvidia-h200"],
        ceilings=(
            ceiling("copy", memory, "B/s"),
            ceiling("matrix_bfloat16", matrix, "FLOP/s"),
            ceiling("launch", launch, "s"),
        ),
    )
    generator = random.Random("impossible")
    flagged = wrong = 0
    for number in range(30):
        size = generator.randint(2**30, 2**33)
        work = matrix * generator.uniform(1e-3, 1e-2)
        cost, honest = [
            (Cost(flops=0, bytes_read=64, bytes_written=64), launch * 1.2),
            (Cost(flops=0, bytes_read=size, bytes_written=size), 2 * size / memory * 1.05),
            (Cost(flops=int(work), bytes_read=64, bytes_written=64), work / matrix * 1.5),
        ][number % 3]
        for seconds, possible in ((honest / generator.uniform(2.5, 20), False), (honest, True)):
            timing = Timing(
                samples_s=(seconds,) * 5, batch=1, timer="cuda_graph", cache="cold", overhead_s=0.0, conditions=()
            )
            accused = suspect(cost, timing, spec, "bfloat16", "matrix") is not None
            flagged += accused and not possible
            wrong += accused and possible
    yield Figure(
        "impossible results",
        "30 of 30 flagged, 0 possible ones",
        f"{flagged} flagged, {wrong} possible ones",
        flagged == 30 and wrong == 0,
    )


def kills_and_writers(scale: Scale) -> Iterator[Figure]:
    import test_store
    from opforge.store import Store

    with tempfile.TemporaryDirectory() as folder:
        output = test_store.child(test_store.KILLED, str(Path(folder) / "killed.sqlite"), str(scale.kills), check=False)
        match output.stdout.split():
            case [written, lost, corrupt, *rest]:
                told, holds = f"{written} written, {lost} lost, {corrupt} corrupt", [lost, corrupt] == ["0", "0"]
                if rest != ["()", "()"]:
                    told, holds = f"{told}; {' '.join(rest)}", False
            case _:
                told, holds = output.stderr[-200:], False
        yield Figure(f"{scale.kills} kill -9", "0 lost, 0 corrupt", told, holds)
        place = Path(folder) / "writers.sqlite"
        done = test_store.child(test_store.WRITERS, str(place), "8", str(scale.writes), check=False)
        with Store.open(place) as store:
            count = len(store.query())
        yield Figure(
            f"8 x {scale.writes} concurrent writes",
            "all there",
            f"{count}, exit codes {done.stdout.strip()}",
            count == 8 * scale.writes and done.returncode == 0,
        )


def damaged_entries(scale: Scale) -> Iterator[Figure]:
    from opforge.backends import cache

    generator = random.Random("damage")
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(scale.entries):
            content = generator.randbytes(4000)
            key = cache.key_of({"number": str(number)})

            def make(path: Path, content: bytes = content) -> dict[str, str]:
                path.write_bytes(content)
                return {"compiler": "none"}

            cache.obtain(root, key, "kernel.so", make)
            file = root / key / ("entry.json" if number % 4 == 3 else "kernel.so")
            data = bytearray(file.read_bytes())
            harm = number % 3
            if harm == 0:
                data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            elif harm == 1:
                del data[generator.randrange(len(data)) :]
            else:
                data[generator.randrange(len(data)) :] = bytes(16)
            file.write_bytes(data)
            entry = cache.obtain(root, key, "kernel.so", make)
            caught += entry.path.read_bytes() == content and (entry.how == "compiled" or file.name == "entry.json")
    yield Figure(
        "damaged cache entries", f"{scale.entries} of {scale.entries} caught", str(caught), caught == scale.entries
    )


def bad_inputs(scale: Scale) -> Iterator[Figure]:
    from fuzzing import attempts

    def late(*_: object) -> None:
        raise TimeoutError(f"no end within {HANG_S} s")

    broken, seconds = [], 0.0
    signal.signal(signal.SIGALRM, late)
    for number, (what, attempt) in enumerate(attempts(scale.bad_inputs)):
        started = time.perf_counter()
        signal.alarm(HANG_S)
        try:
            attempt()
        except BaseException as error:  # noqa: BLE001 - whatever escapes is what is looked for
            broken.append(f"{number} {what}: {type(error).__name__}: {str(error)[:100]}")
        signal.alarm(0)
        seconds = max(seconds, time.perf_counter() - started)
    found = f"{len(broken)} tracebacks, longest {seconds:.2f} s" + "".join(f"\n    {line}" for line in broken[:5])
    yield Figure(f"{scale.bad_inputs} bad inputs", "no traceback, no hang", found, not broken)


def many_records(scale: Scale) -> Iterator[Figure]:
    """Runs of 10 operators x 10 implementations x 5 workloads, one every eighth of a day, and the questions of a
    person.
    """
    from sqlalchemy import insert

    from opforge.cli.report import of_newest_run
    from opforge.cli.report_files import write_reports
    from opforge.gate import series_of
    from opforge.store import Store, connection
    from opforge.store.rows import row_of
    from opforge.store.schema import tables
    from simulated import START, record

    def seconds(work: Callable[[], T]) -> tuple[float, str, T]:
        # the fastest of five: what the question needs, and not what else runs here
        spent = []
        for _ in range(5):
            store.close()
            started, processor = time.perf_counter(), time.process_time()
            answer = work()
            spent.append((time.perf_counter() - started, time.process_time() - processor))
        wall, processor = min(spent)
        return wall, f"{1e3 * wall:.0f} ms ({1e3 * processor:.0f} ms of them on a processor)", answer

    operators, names, workloads = (
        [f"{word}_{number}" for number in range(count)]
        for word, count in (("operator", 10), ("torch", 10), ("workload", 5))
    )
    a_run = len(operators) * len(names) * len(workloads)

    def one_run(number: int) -> list[Record]:
        return [
            record(
                1e-3 * slower(number),
                day=number / 8,
                run=f"run{number}",
                operator=operator,
                implementation=name,
                workload=workload,
                samples=12,
            )
            for operator in operators
            for name in names
            for workload in workloads
        ]

    def slower(number: int) -> float:
        return 1.1 if number > runs - 40 else 1.0

    runs = scale.records // a_run
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "many.sqlite") as store:
        # the questions below read columns of old runs and no bodies: these are one run's rows over and over, under new
        # ids
        template = [row_of(one) for one in one_run(-1)]
        engine = connection.file_engine(Path(folder) / "many.sqlite")
        for number in range(runs - 1):
            when = (START + datetime.timedelta(days=number / 8)).isoformat(timespec="microseconds")
            fresh = {"run": f"run{number}", "created_at": when}
            factor = slower(number)
            rows = [
                {
                    **row,
                    **fresh,
                    "id": uuid.uuid4().hex,
                    **{name: row[name] * factor for name in ("median_s", "low_s", "high_s")},
                }
                for row in template
            ]
            with engine.execution_options(writes=True).begin() as database:
                database.execute(insert(tables().records), rows)
        engine.dispose()
        store.add(one_run(runs - 1))
        size = (Path(folder) / "many.sqlite").stat().st_size >> 20
        history, told, found = seconds(
            lambda: series_of(store.series("operator_3", "torch_7", "workload_3", "float32", limit=2000, timed=True))
        )
        points = sum(len(series.points) for series in found)
        yield Figure(
            f"a history among {scale.records} records",
            "<= 200 ms",
            f"{told}, {points} points, {size} MiB",
            history <= 0.2 and points == min(2000, runs),
        )
        whole, told, taken = seconds(lambda: len(store.series("operator_3", limit=2000, timed=True)))
        yield Figure(
            f"an operator's newest timings among {scale.records}",
            "<= 200 ms",
            f"{told}, {taken} points",
            whole <= 0.2 and taken == 2000,
        )

        def report() -> int:
            records, pasts = of_newest_run(store, operators=["operator_3"])
            write_reports(records, Path(folder) / "report", None, pasts=pasts)
            return len(records)

        spent, told, count = seconds(report)
        yield Figure(
            f"report of one operator among {scale.records}",
            "<= 2 s",
            f"{told}, {count} kernels with their histories",
            spent <= 2.0 and count == 50,
        )


def times(scale: Scale) -> Iterator[Figure]:
    """Alone, among rivals, and in a plain loop."""
    from trust_times import asked

    for name, wanted, found, holds in asked(load, quick=scale == QUICK):
        yield Figure(name, wanted, found, holds)


def suspects(scale: Scale) -> Iterator[Figure]:
    """Honest times on a busy machine, and by the ceilings of a busy one."""
    from trust_suspects import asked

    for name, wanted, found, holds in asked(load, quick=scale == QUICK):
        yield Figure(name, wanted, found, holds)


SECTIONS = {
    "times": times,
    "suspect": suspects,
    "impossible": impossible,
    "histories": histories,
    "aa": same_code,
    "workers": real_workers,
    "slower": slow_downs,
    "gate": gates,
    "store": kills_and_writers,
    "cache": damaged_entries,
    "fuzz": bad_inputs,
    "million": many_records,
}


IN_PARTS = ("times", "suspect", "aa", "gate")
"""Sections of several parts; each of the others is one."""
OF_MINUTES = ("suspect",)
"""Sections that take minutes with small numbers too: `--quick` asks them only by name."""


def asked(name: str, scale: Scale) -> Iterator[Figure]:
    """The figures of a section, or those of an earlier run."""
    if name in IN_PARTS:
        yield from SECTIONS[name](scale)
    else:
        for kept in PARTS.part(name, lambda: [asdict(figure) for figure in SECTIONS[name](scale)]):
            yield Figure(**kept)


def main(words: list[str]) -> int:
    """Print every figure; 1 if one falls short."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller numbers, two to three minutes")
    parser.add_argument("--only", default="", help=f"sections whose name contains this: {', '.join(SECTIONS)}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--parts",
        type=Path,
        help="keep what was found in this folder, and do not ask it again",
    )
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no part is begun")
    parser.add_argument("--page", type=Path, help="write the figures to this file too, as docs/trust.md has them")
    given = parser.parse_args(words)
    scale = QUICK if given.quick else Scale()
    figures: list[Figure] = []
    spent_s = 0.0
    if given.parts:
        PARTS.keep(given.parts / ("quick" if given.quick else "full"), given.limit)
    names = [
        name for name in SECTIONS if given.only in name and not (given.quick and name in OF_MINUTES and not given.only)
    ]
    try:
        for name in names:
            for figure in asked(name, scale):
                figures.append(figure)
                if not given.json:
                    print(
                        f"{'ok  ' if figure.holds else 'SHORT'} {figure.name}: {figure.found}   wanted "
                        f"{figure.wanted}   [{PARTS.spent_s:.0f} s]",
                        flush=True,
                    )
                spent_s, PARTS.spent_s = spent_s + PARTS.spent_s, 0.0
    except Paused as left:
        print(f"paused before {left}; the same command goes on", file=sys.stderr)
        return PAUSED
    if given.json:
        print(json.dumps([vars(figure) for figure in figures], indent=1))
    if given.page:
        given.page.write_text(page(figures, spent_s), encoding="utf-8")
    short = [figure for figure in figures if not figure.holds]
    if not given.json:
        print(
            f"{len(figures) - len(short)} of {len(figures)} figures hold; load now {os.getloadavg()[0]:.1f} on "
            f"{os.cpu_count()} cores"
        )
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
