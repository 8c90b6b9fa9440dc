"""Measures the C++ kernels against torch eager and torch.compile on this machine, and writes
docs/results-cpu-ratios.md.

    python scripts/cpu_ratios.py                                every memory-bound operator, all dtypes
    python scripts/cpu_ratios.py --operators softmax relu       these, the other rows stay as they were
    python scripts/cpu_ratios.py --dtype float32 bfloat16       these dtypes
    python scripts/cpu_ratios.py --missing                      what the records do not hold yet

The times of a row are taken interleaved (`workbench.bench`): each implementation is verified, warmed up,
sampled in rounds in random order and
verified again. The records lie in results/cpu-ratios.jsonl.gz and are written after every operator, so an interrupted
run keeps what it has. No operator is begun after --minutes; a later run with --missing goes on. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
sys.path.insert(0, str(SOURCE))
# worker processes must find opforge where it is not installed
os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])

if TYPE_CHECKING:
    from opforge.core.device import DeviceSpec
    from opforge.core.record import Record
    from opforge.registry import Registry
    from opforge.runner import Host

RECORDS = ROOT / "results" / "cpu-ratios.jsonl.gz"
PAGE = ROOT / "docs" / "results-cpu-ratios.md"
SIDES = ("torch", "compile", "cpp")
DTYPES = ("float32", "bfloat16", "float16")
INTRODUCTION = """# C++ against torch on a CPU

Wanted: on the laptop workloads, the cpp kernels against the faster of torch eager and torch.compile
have a geometric mean of 1.1 at least and no ratio below
0.9; and their share of what a copy of as many bytes reaches on the same machine, with the same caches,
    is stated. torch and torch.compile return a new tensor and their
time includes making it, as it does for their users. dropout and layernorm_dropout draw their mask from a
counter, which torch has to compute with integer tensors (its own dropout has another mask and could not
be verified): leave them out when reading the mean.

<!-- table: results/cpu-ratios.jsonl.gz --ratios cpp -->
<!-- end -->

Below 0.9: rmsnorm_backward in float16 with 2048 columns, 0.89 and 0.86 in two measurements,
    where torch.compile took 1.34 ms; in bfloat16, by the same kernel, it is 1.53.

Renewed by `python scripts/cpu_ratios.py` on a quiet machine.
"""


@dataclass(frozen=True)
class Job:
    """One operator in one dtype."""

    operator: str
    dtype: str


def jobs(registry: Registry, operators: Sequence[str], dtypes: Sequence[str]) -> Iterator[Job]:
    """Every operator that is bound by memory and has a C++ kernel, a dtype at a time, so that a run cut short has the
    first dtypes whole.

    Of those not named: products of matrices and what writes float8 are bound by other things and have results of their
    own.
    """
    for dtype in dtypes:
        for name in operators or registry.names():
            operator = registry.operator(name)
            kernels = [
                implementation for implementation in registry.implementations(name) if implementation.backend == "cpp"
            ]
            if (
                dtype in operator.dtypes
                and kernels
                and (operators or (operator.unit == "vector" and operator.outputs[0].dtype == "T"))
            ):
                yield Job(name, dtype)


def measured(registry: Registry, job: Job, budget_s: float, device: DeviceSpec, host: Host) -> list[Record]:
    """The records of one job, each with what a copy of as many bytes reached."""
    from opforge.core.operator import Cost
    from opforge.report.ratios import COPY_FACT
    from opforge.roofline.rates import memory_rate
    from opforge.timing import Plan
    from opforge.verify import QUICK
    from opforge.workbench import BenchOptions, bench

    options = BenchOptions(
        device="cpu", dtypes=(job.dtype,), backends=SIDES, effort=QUICK, plan=Plan(samples=30, budget_s=budget_s)
    )
    found = []
    for record in bench(registry, [job.operator], options, host):
        half = record.cost.bytes // 2
        copy = memory_rate(
            Cost(flops=0, bytes_read=half, bytes_written=half), device, cached=record.cost.bytes <= device.cache_bytes
        )
        facts = {
            **record.environment.facts,
            **({COPY_FACT: f"{copy.value:.4g}"} if copy is not None and record.timing is not None else {}),
        }
        found.append(replace(record, environment=replace(record.environment, facts=facts)))
    return found


def kept() -> list[Record]:
    """The records there are."""
    from opforge.store import read_file, read_lines

    return list(read_lines(read_file(RECORDS))) if RECORDS.is_file() else []


def keep(records: Sequence[Record]) -> None:
    """Write the records, whole or not at all."""
    import json

    from opforge.core.record import to_json
    from opforge.store import write_file

    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    fresh = RECORDS.with_name(f".new.{RECORDS.name}")
    write_file(fresh, [json.dumps(to_json(record), separators=(",", ":"), sort_keys=True) for record in records])
    fresh.replace(RECORDS)


def write_page() -> str:
    """Make the page's table anew; the table."""
    from docs import with_tables

    text = with_tables(PAGE.read_text(encoding="utf-8") if PAGE.is_file() else INTRODUCTION)
    PAGE.write_text(text, encoding="utf-8")
    return text


def line(records: Sequence[Record]) -> str:
    """What a job found: the ratio of each workload, or why there is none."""
    from opforge.report.ratios import ratios

    found = [f"{ratio.group.workload} {ratio.value:.2f}x" for ratio in ratios(records)]
    failed = [
        f"{record.implementation}: {type(record.verdict).__name__}" for record in records if record.timing is None
    ]
    return ", ".join(found + failed)


def main() -> int:
    """Measure, keep, write the page. Exit code 1 when a side of a comparison has no time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--operators", nargs="+", default=[], help="operators by name; default: all that are bound by memory"
    )
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument(
        "--budget", type=float, default=0.3, help="seconds of sampling for each implementation of each workload"
    )
    parser.add_argument("--minutes", type=float, default=23.0, help="no operator is begun after so many minutes")
    parser.add_argument("--missing", action="store_true", help="only what the records do not hold yet")
    given = parser.parse_args()
    # being ended is being interrupted: what was measured is kept
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    from opforge.machine import measure_ceilings, warnings
    from opforge.registry import load
    from opforge.runner import Isolated

    started = time.monotonic()
    registry = load(())
    records = kept()
    held = {(record.operator, record.dtype) for record in records}
    todo = [
        job
        for job in jobs(registry, given.operators, given.dtype)
        if not (given.missing and (job.operator, job.dtype) in held)
    ]
    for words in warnings("cpu"):
        print(f"warning: {words}", flush=True)
    print("measuring what a copy reaches on this machine …", flush=True)
    device = measure_ceilings("cpu", budget_s=10.0)
    untimed = 0
    host = Isolated()
    try:
        for place, job in enumerate(todo, 1):
            passed = (time.monotonic() - started) / 60
            if passed > given.minutes:
                print(
                    f"stopped after {passed:.0f} minutes with {len(todo) - place + 1} of {len(todo)} left; go on "
                    "with --missing"
                )
                break
            found = measured(registry, job, given.budget, device, host)
            untimed += any(record.timing is None for record in found)
            records = [
                record for record in records if (record.operator, record.dtype) != (job.operator, job.dtype)
            ] + found
            keep(records)
            print(f"[{passed:4.1f} min, {place}/{len(todo)}] {job.operator} {job.dtype}: {line(found)}", flush=True)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, go on with --missing")
    finally:
        host.close()
    if records:
        print(write_page())
        print(f"wrote {RECORDS.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")
    return int(untimed > 0)


if __name__ == "__main__":
    sys.exit(main())
