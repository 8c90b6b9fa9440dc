"""Verifies the kernels that ship again and again, each time on other values: `scripts/honest_verdicts.py --limit 270`.
None of them may be refused.

It works in slices: the batches (an operator on a backend) that the store has the fewest verdicts of come first, so that
a slice goes on where the last one ended. At the end, or with `--report`, it prints how many verdicts there are, each
that was refused, and the cases nearest to their bounds: what would be refused once in a thousand times is seen there
first. `opforge --store FILE verify --replay ID` runs any of them again, on the same values.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Iterator

from opforge.backends import Missing, backend
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import REFUSED, Inaccurate, Pass
from opforge.core.language.errors import OpforgeError
from opforge.registry import Registry, load
from opforge.runner import Isolated
from opforge.store import Store
from opforge.verify import BRIEF, DEFAULT
from opforge.workbench import BenchOptions, verify_all

BACKENDS = ("torch", "cpp", "tilelang", "triton", "cuda", "compile")
"""Those that run, are interpreted or are emulated without a GPU, the fast ones first."""
ON_A_GPU = ("cuda", "triton", "tilelang", "torch", "compile")
"""Those that run there, what is our own first."""

NEAREST = 12
"""Lines of cases nearest to their bounds."""

Batch = tuple[str, str]


def main() -> int:
    """1 when an honest kernel was refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--store", default="honest.sqlite", help="where the verdicts are kept, and counted")
    parser.add_argument("--limit", type=float, default=270.0, help="seconds after which no batch is begun")
    parser.add_argument("--operators", nargs="*", default=[])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, help="default: all that run on the device")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", nargs="*", default=[], help="default: all of an operator")
    parser.add_argument("--rounds", type=int, default=0, help="end when each batch was verified so often; 0: go on")
    parser.add_argument("--brief", action="store_true", help="fewer hidden cases and repeats, as before a bench")
    parser.add_argument("--report", action="store_true", help="verify nothing; print what the store has")
    asked = parser.parse_args()
    asked.backends = asked.backends or list(BACKENDS if asked.device == "cpu" else ON_A_GPU)
    with Store.open(asked.store) as store:
        if not asked.report:
            verify_slice(store, asked)
        records = [record for record in store.query() if record.operator in (asked.operators or load([]).names())]
    lines, refused = told(records)
    print("\n".join(lines))
    return int(refused > 0)


def verify_slice(store: Store, asked: argparse.Namespace) -> None:
    """Batch after batch until the time is up; every record is kept as soon as it is there."""
    begun, registry = time.monotonic(), load([])
    done: collections.Counter[Batch] = collections.Counter()
    for record in store.query():
        done[record.operator, record.backend] += 1
    batches = batches_of(registry, asked)
    rounds = {batch: done[batch] / weight for batch, weight in batches.items()}
    host = Isolated()
    try:
        while batches and time.monotonic() - begun < asked.limit:
            batch = min(batches, key=lambda item: rounds[item])
            if asked.rounds and rounds[batch] >= asked.rounds:
                break
            rounds[batch] += 1
            name, kind = batch
            options = BenchOptions(
                device=asked.device,
                dtypes=tuple(asked.dtype),
                backends=(kind,),
                timed=False,
                effort=BRIEF if asked.brief else DEFAULT,
            )
            started = time.monotonic()
            try:
                for record in verify_all(registry, [name], options, host):
                    store.add([record])
                    if is_refused(record):
                        print(described(record), flush=True)
            except OpforgeError as error:
                print(f"{name} {kind}: {type(error).__name__}: {error}", flush=True)
            print(f"{time.monotonic() - begun:4.0f} s  {name} {kind}: {time.monotonic() - started:.1f} s", flush=True)
    finally:
        host.close()


def batches_of(registry: Registry, asked: argparse.Namespace) -> dict[Batch, int]:
    """The batches in the order of their backends, and how many verdicts each gives."""
    found: dict[Batch, int] = {}
    for kind in asked.backends:
        if isinstance(backend(kind).execution_mode(asked.device), Missing):
            continue
        for name in asked.operators or registry.names():
            kernels = sum(item.backend == kind for item in registry.implementations(name))
            dtypes = [dtype for dtype in registry.operator(name).dtypes if not asked.dtype or dtype in asked.dtype]
            if kernels and dtypes:
                found[name, kind] = kernels * len(dtypes)
    return found


def is_refused(record: Record) -> bool:
    """Whether an honest kernel was refused. An inaccurate baseline is what its file says that it is."""
    return isinstance(record.verdict, REFUSED)


def described(record: Record) -> str:
    """One line: which kernel, and why it was refused."""
    verdict = record.verdict
    case = getattr(verdict, "case", None)
    why = getattr(verdict, "cause", "") or getattr(verdict, "reason", "")
    return (
        f"refused  {record.operator}/{record.implementation} {record.dtype} {type(verdict).__name__} "
        f"{getattr(case, 'name', '')} {why[:160]}  ({record.id[:12]})"
    )


def told(records: list[Record]) -> tuple[list[str], int]:
    """The page, and how many were refused."""
    refused = [record for record in records if is_refused(record)]
    passed = [record for record in records if isinstance(record.verdict, Pass)]
    known = sum(isinstance(record.verdict, Inaccurate) for record in records)
    kernels = {(record.operator, record.implementation, record.dtype) for record in passed}
    lines = [described(record) for record in refused]
    lines += ["nearest to their bounds (of one element, of all together):"]
    lines += [
        f"  {worst:.2f} {noise:.2f}  {record.operator}/{record.implementation} {record.dtype} {name} ({record.id[:12]})"
        for worst, noise, name, record in nearest(passed)
    ]
    lines.append(
        f"{len(refused)} of {len(passed) + len(refused)} honest verdicts refused: {len(kernels)} kernels and dtypes; "
        f"{known} of baselines that say they are inaccurate"
    )
    return lines, len(refused)


def nearest(passed: list[Record]) -> list[tuple[float, float, str, Record]]:
    """Of each kernel and dtype the case that was nearest to its bound over all verdicts; the nearest of these first."""
    found: dict[tuple[str, str, str], tuple[float, float, str, Record]] = {}
    for record in passed:
        for worst, noise, name in ratios(record):
            key = (record.operator, record.implementation, record.dtype)
            if key not in found or max(worst, noise) > max(found[key][:2]):
                found[key] = (worst, noise, name, record)
    return sorted(found.values(), key=lambda item: -max(item[:2]))[:NEAREST]


def ratios(record: Record) -> Iterator[tuple[float, float, str]]:
    """Of each case and output: the worst element's share of its bound, and the noise. The rounding of a 16-bit result
    takes nearly all of its bound whatever a kernel does: there the noise alone tells.
    """
    assert isinstance(record.verdict, Pass)
    wide = record.dtype == "float32"
    for checked in record.verdict.checked:
        for metrics in checked.metrics:
            worst = metrics.worst_ratio if wide else 0.0
            yield worst, metrics.noise or 0.0, f"{checked.case.name}.{metrics.output}"


if __name__ == "__main__":
    sys.exit(main())
