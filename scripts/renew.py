"""Renews the records of a device in slices: `scripts/renew.py --device cuda --limit 540`. What users would be given
wrongly comes first.

One process for the whole slice: servers, contexts and compiled kernels serve all of it. Each record is kept as soon as
it is found. Run it again with the same store (or with the exported records imported) and it goes on: what was renewed
is the newest, and comes last. With `--each 12` a slice gives something of every operator: what a batch did not get to
is missing in the next. A time that does not state its terms is stale: it stands beside none of today's.

`--prepare N` works on N operators side by side first, each in a process of its own: it verifies what has no
verification that stands, and runs each call to be timed once, so that compilers are not waited for between times.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opforge.backends import Missing, backend
from opforge.backends.program_hash import is_of
from opforge.cli.progress import Watcher, tracing
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import Record
from opforge.core.evidence.timing_terms import CALL
from opforge.core.evidence.verdict import Inaccurate, Pass, Proof
from opforge.core.language.errors import EnvironmentLacks, OpforgeError
from opforge.machine import detect, ensure_ceilings
from opforge.registry import Registry, load
from opforge.runner import Isolated
from opforge.store import Store
from opforge.timing import Plan
from opforge.trial.verified_before import VerifiedKey, inaccurate_before, proven
from opforge.verify import BRIEF
from opforge.workbench import BenchOptions, bench, verify_all, workloads_for
from opforge.workbench.rehearsal import rehearse
from opforge.workbench.renewal import NEEDS, Batch, batches

LEAST_S = 15.0
"""With less time left no batch is begun: its workers would hardly be there."""


DEFECTS = (RuntimeError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""What a defect of one operator raises, in its definition or in what measures it: it costs no other its records, and is
printed and counted. A name or a module that is missing is a defect of all, and ends the slice.
"""


PROOFS = (Pass, Inaccurate)
"""Verdicts after which a kernel is timed."""


class Over(KeyboardInterrupt):
    """The slice's time is up: no Exception, which a bench would take for one kernel's defect."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds after which the slice ends; 0: none")
    parser.add_argument("--budget", type=float, default=0.25, help="seconds of measuring for each row")
    parser.add_argument("--operators", nargs="*", default=[])
    parser.add_argument("--dtype", nargs="*", default=[], help="default: all")
    parser.add_argument("--backend", nargs="*", default=[], help="default: all; on a CPU: those that are timed there")
    parser.add_argument(
        "--share", default="0/1", help="i/n: every n-th batch from the i-th, for n devices side by side"
    )
    parser.add_argument("--again", action="store_true", help="verify again what has a verification that stands")
    parser.add_argument(
        "--grid",
        action="store_true",
        help="the operators' shape classes too: what dispatch chooses by for calls that are no workload of a model",
    )
    parser.add_argument(
        "--need",
        nargs="*",
        type=int,
        default=[],
        help=f"of {', '.join(f'{at}: {need}' for at, need in enumerate(NEEDS))}",
    )
    parser.add_argument("--prepare", type=int, default=0, metavar="N", help="verify first, N operators side by side")
    parser.add_argument("--prepare-limit", type=float, default=300.0, help="seconds that this may take")
    parser.add_argument("--prepare-only", action="store_true", help="prepare one after another, here; time nothing")
    parser.add_argument(
        "--any-version",
        action="store_true",
        help="let a whole verification of the same code stand, also one by an earlier definition or verifier",
    )
    parser.add_argument(
        "--each", type=float, default=0.0, metavar="SECONDS", help="of a batch, after which the next is begun; 0: none"
    )
    parser.add_argument("--before", default="", metavar="TIME", help="ISO: calls with a row that is older, no others")
    parser.add_argument("--plan", action="store_true", help="print what would be measured, and end")
    parser.add_argument("--trace", type=Path, default=None, help="what the seconds went into, as a trace")
    asked = parser.parse_args()
    begun = time.monotonic()
    registry = load(())
    names = asked.operators or list(registry.names())
    try:
        device = detect(asked.device).name
    except EnvironmentLacks as error:
        print(error, file=sys.stderr)
        return 3
    cache = "warm" if asked.device == "cpu" else "cold"

    def current(operator: str, record: Record) -> bool:
        if record.timing is not None and record.timing.terms != CALL:
            return False
        key = (operator, record.implementation)
        return is_of(registry.implementation(*key), record.source_sha256, record.code_sha256)

    def able(operator: str) -> list[str]:
        return [item.name for item in able_here(registry, operator, asked)]

    options = BenchOptions(device=asked.device)

    def sized(operator: Operator) -> list[Workload]:
        classes = workloads_for(operator, dataclasses.replace(options, grid=True)) if asked.grid else ()
        return [*workloads_for(operator, options), *classes]

    with Store.open(None) as store:
        known = collections.defaultdict(list)
        for record in store.query(device=device):
            if not record.trial and (record.timing is None or record.timing.cache == cache):
                known[record.operator].append(record)
        found = batches(
            [registry.operator(name) for name in names],
            able,
            sized,
            lambda name: known[name],
            current,
            asked.dtype,
            asked.before,
        )
        counted = collections.Counter(batch.need for batch in found)
        told = ", ".join(f"{counted[need]}: {need}" for need in NEEDS if counted[need])
        print(f"{len(found)} batches, {sum(batch.rows for batch in found)} rows on {device} ({told})", flush=True)
        index, count = map(int, asked.share.split("/"))
        mine = [batch for batch in found if not asked.need or NEEDS.index(batch.need) in asked.need][index::count]
        if asked.plan:
            for batch in mine:
                calls = f"{len(batch.calls)} calls in {', '.join(batch.dtypes)}"
                print(
                    f"  {batch.operator:<24} {batch.rows:>4} rows, {calls}: {batch.need}, oldest "
                    f"{batch.oldest[:10] or '-'}"
                )
            return 0
        ensure_ceilings(asked.device, functools.partial(print, flush=True))
        if asked.prepare_only:
            return prepare(store, registry, mine, asked, begun)
        if asked.prepare:
            prepare_side_by_side(mine, asked)
        return renew(store, registry, mine, asked, begun)


def able_here(registry: Registry, operator: str, asked: argparse.Namespace) -> list[Implementation]:
    """The implementations that can be asked on the device, of the backends that are asked for."""
    return [
        item
        for item in registry.implementations(operator)
        if not isinstance(backend(item.backend).execution_mode(asked.device), Missing)
        and (not asked.backend or item.backend in asked.backend)
    ]


def standing(store: Store, registry: Registry, operator: str, asked: argparse.Namespace) -> dict[VerifiedKey, Proof]:
    """What of an operator need not be verified again."""
    if asked.again:
        return {}
    model = detect(asked.device).name
    right = proven(store, registry, [operator], model, any_version=asked.any_version)
    return {**right, **(inaccurate_before(store, registry, operator, model) if asked.any_version else {})}


def prepare_side_by_side(mine: list[Batch], asked: argparse.Namespace) -> None:
    """Prepare the operators of these batches, `asked.prepare` of them at a time, those with most rows first. What is
    not done when the time is up is verified while it is renewed.
    """
    begun, rows = time.monotonic(), collections.Counter[str]()
    for batch in mine:
        rows[batch.operator] += batch.rows

    def one(name: str) -> None:
        left = asked.prepare_limit - (time.monotonic() - begun)
        if left < LEAST_S:
            print(f"prepare {name}: not begun for want of time", flush=True)
            return
        words = ["--operators", name, "--device", asked.device, "--limit", f"{left:.0f}", "--prepare-only"]
        for option, values in (("--dtype", asked.dtype), ("--backend", asked.backend), ("--need", asked.need)):
            words += [option, *map(str, values)] if values else []
        flags = (("--again", asked.again), ("--grid", asked.grid), ("--any-version", asked.any_version))
        words += [option for option, given in flags if given]
        child = subprocess.Popen([sys.executable, __file__, *words], stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = child.wait(left + 30)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        took = time.monotonic() - begun
        print(f"{took:5.0f} s  prepare {name}: {'done' if not code else f'ended with {code}'}", flush=True)

    with ThreadPoolExecutor(max_workers=asked.prepare) as pool:
        list(pool.map(one, [name for name, _ in rows.most_common()]))


def prepare(store: Store, registry: Registry, mine: list[Batch], asked: argparse.Namespace, begun: float) -> int:
    """Verify what has no verification that stands, in each of the operator's dtypes that are asked for, and run each
    call of the batches once; 1 after an error.
    """
    host, failures = Isolated(), 0
    names = list(dict.fromkeys(batch.operator for batch in mine))
    with timed_out(asked.limit, begun):
        try:
            for name in names:
                stands = standing(store, registry, name, asked)
                operator = registry.operator(name)
                wanted = [dtype for dtype in operator.dtypes if not asked.dtype or dtype in asked.dtype]
                left = [
                    item
                    for item in able_here(registry, name, asked)
                    if any((name, item.name, dtype) not in stands for dtype in wanted)
                ]
                options = BenchOptions(
                    device=asked.device,
                    dtypes=tuple(wanted),
                    implementations=tuple(item.name for item in left),
                    effort=BRIEF,
                )
                try:
                    for record in verify_all(registry, [name], options, host) if left else ():
                        store.add([record])
                        if isinstance(record.verdict, PROOFS):
                            stands[name, record.implementation, record.dtype] = record.verdict
                except (OpforgeError, *DEFECTS) as error:
                    failures += 1
                    print(f"verify {name}: {type(error).__name__}: {error}", flush=True)
                print(f"{time.monotonic() - begun:5.0f} s  {name}: verified", flush=True)
                calls = [call for batch in mine if batch.operator == name for call in batch.calls]
                try:
                    rehearse(registry, operator, calls, asked.device, host, stands)
                except (OpforgeError, *DEFECTS) as error:
                    failures += 1
                    told = traceback.extract_tb(error.__traceback__)[-1]
                    print(
                        f"rehearse {name}: {type(error).__name__}: {error} ({told.filename}:{told.lineno})", flush=True
                    )
        finally:
            with contextlib.suppress(Over):
                host.close()
    return int(bool(failures))


@contextlib.contextmanager
def timed_out(limit_s: float, begun: float) -> Iterator[None]:
    """Ends the block when `limit_s` seconds have passed since `begun` (0: never), or this process is asked to end, and
    says so.
    """

    def over(number: int, frame: object) -> None:
        raise Over

    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, over)
    try:
        if limit_s:
            signal.setitimer(signal.ITIMER_REAL, max(1.0, limit_s - (time.monotonic() - begun)))
        yield
    except Over:
        print(f"{time.monotonic() - begun:5.0f} s  the time is up; what was found is kept", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def renew(store: Store, registry: Registry, mine: list[Batch], asked: argparse.Namespace, begun: float) -> int:
    """Measure the batches in order until the time is up; 0 also then: what is left is said."""

    def left() -> float:
        return asked.limit - (time.monotonic() - begun) if asked.limit else float("inf")

    plan = Plan(budget_s=asked.budget, cache="warm" if asked.device == "cpu" else "cold")
    done = rows = failures = 0
    host = Isolated()
    with timed_out(asked.limit, begun):
        try:
            with tracing(asked.trace), Watcher(quiet=False) as watcher:
                for batch in mine:
                    if left() < LEAST_S:
                        break
                    stands = standing(store, registry, batch.operator, asked)
                    options = BenchOptions(
                        device=asked.device,
                        dtypes=batch.dtypes,
                        backends=tuple(asked.backend),
                        workloads=batch.workloads,
                        calls=batch.calls,
                        plan=plan,
                        effort=BRIEF,
                        proven=stands,
                    )
                    before, begun_batch = rows, time.monotonic()
                    try:
                        found = bench(registry, [batch.operator], options, host, listener=watcher)
                        with contextlib.closing(found):
                            for record in found:
                                store.add([record])
                                rows += 1
                                if asked.each and time.monotonic() - begun_batch > asked.each:
                                    break
                    except (OpforgeError, *DEFECTS) as error:
                        failures += 1
                        print(f"{batch.operator}: {type(error).__name__}: {error}", flush=True)
                    done += 1
                    now = time.monotonic()
                    told = f"{rows - before} rows in {now - begun_batch:.1f} s"
                    told += f" ({len(stands)} verified before); {batch.need}"
                    print(f"{now - begun:5.0f} s  {batch.operator} {', '.join(batch.dtypes)}: {told}", flush=True)
        finally:
            with contextlib.suppress(Over):
                host.close()
    rest, took = mine[done:], time.monotonic() - begun
    todo = sum(batch.rows for batch in rest)
    words = (
        f"; about {todo * took / rows:.0f} s more for the {todo} rows of {len(rest)} batches" if rest and rows else ""
    )
    print(
        f"{done} of {len(mine)} batches, {rows} rows in {took:.0f} "
        f"s{words}{f'; {failures} batches with an error' if failures else ''}",
        flush=True,
    )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
