"""Renews the records of a device in slices: `scripts/renew.py --device cuda --limit 540`. What users would be given
wrongly comes first.

One process for the whole slice: servers, contexts and compiled kernels serve all of it. Each record is kept as soon as
it is found. Run it again with the same store (or with the exported records imported) and it goes on: what was renewed
is the newest, and comes last.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import signal
import sys
import time

from opforge.backends import Missing, backend
from opforge.backends.program_hash import program_sha256
from opforge.backends.shared_code import source_sha256
from opforge.cli.progress import Watcher, tracing
from opforge.core.errors import OpforgeError
from opforge.core.operator import Operator, Workload
from opforge.machine import detect
from opforge.registry import Registry, load
from opforge.runner import Isolated
from opforge.store import Store
from opforge.timing import Plan
from opforge.trial.verified_before import proven
from opforge.verify import BRIEF
from opforge.workbench import BenchOptions, bench, workloads_for
from opforge.workbench.renewal import NEEDS, OLD, Batch, batches

LEAST_S = 15.0
"""With less time left no batch is begun: its workers would hardly be there."""


DEFECTS = (RuntimeError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""What a defect of one operator raises, in its definition or in what measures it: it costs no other its records, and is
printed and counted. A name or a module that is missing is a defect of all, and ends the slice.
"""


class Over(KeyboardInterrupt):
    """The slice's time is up: no Exception, which a bench would take for one kernel's defect."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds after which the slice ends; 0: none")
    parser.add_argument("--budget", type=float, default=0.25, help="seconds of measuring for each row")
    parser.add_argument("--operators", nargs="*", default=[])
    parser.add_argument("--dtype", nargs="*", default=["float32", "float16", "bfloat16"])
    parser.add_argument(
        "--share", default="0/1", help="i/n: every n-th batch from the i-th, for n devices side by side"
    )
    parser.add_argument("--again", action="store_true", help="verify again what has a verification that stands")
    parser.add_argument(
        "--grid",
        action="store_true",
        help="the operators' shape classes too: what dispatch chooses by for calls that are no workload of a model",
    )
    parser.add_argument("--plan", action="store_true", help="print what would be measured, and end")
    parser.add_argument("--trace", default=None)
    asked = parser.parse_args()
    begun = time.monotonic()
    registry = load(())
    names = asked.operators or list(registry.names())
    device = detect(asked.device).name
    hashes: dict[tuple[str, str], str] = {}
    cache = "warm" if asked.device == "cpu" else "cold"

    def current(operator: str, record: object) -> bool:
        key = (operator, record.implementation)  # type: ignore[attr-defined]
        if key not in hashes:
            hashes[key] = source_sha256(registry.implementation(*key).source)
        if hashes[key] == record.source_sha256:  # type: ignore[attr-defined]
            return True
        code = record.code_sha256  # type: ignore[attr-defined]
        return bool(code) and program_sha256(registry.implementation(*key)) == code

    def able(operator: str) -> list[str]:
        return [
            item.name
            for item in registry.implementations(operator)
            if not isinstance(backend(item.backend).execution_mode(asked.device), Missing)
        ]

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
            [registry.operator(name) for name in names], able, sized, lambda name: known[name], current, asked.dtype
        )
        counted = collections.Counter(batch.need for batch in found)
        told = ", ".join(f"{counted[need]}: {need}" for need in NEEDS if counted[need])
        print(f"{len(found)} batches, {sum(batch.rows for batch in found)} rows on {device} ({told})", flush=True)
        index, count = map(int, asked.share.split("/"))
        mine = found[index::count]
        if asked.plan:
            for batch in mine:
                urgent = f" ({batch.urgent} workloads)" if batch.need != OLD else ""
                print(
                    f"  {batch.operator:<24} {batch.dtype:<9} {batch.rows:>4} rows  {batch.need}{urgent}, oldest "
                    f"{batch.oldest[:10] or '-'}"
                )
            return 0
        return renew(store, registry, mine, asked, begun)


def renew(store: Store, registry: Registry, mine: list[Batch], asked: argparse.Namespace, begun: float) -> int:
    """Measure the batches in order until the time is up; 0 also then: what is left is said."""

    def left() -> float:
        return asked.limit - (time.monotonic() - begun) if asked.limit else float("inf")

    def over(number: int, frame: object) -> None:
        raise Over

    signal.signal(signal.SIGALRM, over)
    signal.signal(signal.SIGINT, over)
    signal.signal(signal.SIGTERM, over)
    plan = Plan(budget_s=asked.budget, cache="warm" if asked.device == "cpu" else "cold")
    done = rows = failures = 0
    host = Isolated()
    try:
        with tracing(asked.trace), Watcher(quiet=False) as watcher:
            if asked.limit:
                signal.setitimer(signal.ITIMER_REAL, max(1.0, left()))
            for batch in mine:
                if left() < LEAST_S:
                    break
                stands = {} if asked.again else proven(store, registry, [batch.operator], detect(asked.device).name)
                options = BenchOptions(
                    device=asked.device,
                    dtypes=(batch.dtype,),
                    workloads=batch.workloads,
                    plan=plan,
                    effort=BRIEF,
                    proven=stands,
                )
                before, begun_batch = rows, time.monotonic()
                try:
                    for record in bench(registry, [batch.operator], options, host, listener=watcher):
                        store.add([record])
                        rows += 1
                except OpforgeError as error:
                    failures += 1
                    print(f"{batch.operator} {batch.dtype}: {error}", flush=True)
                except DEFECTS as error:
                    failures += 1
                    print(f"{batch.operator} {batch.dtype}: {type(error).__name__}: {error}", flush=True)
                done += 1
                now = time.monotonic()
                told = (
                    f"{rows - before} rows in {now - begun_batch:.1f} s ({len(stands)} verified before); {batch.need}"
                )
                print(f"{now - begun:5.0f} s  {batch.operator} {batch.dtype}: {told}", flush=True)
    except Over:
        print(f"{time.monotonic() - begun:5.0f} s  the time is up; what was measured is kept", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
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
