"""Every CUDA and Triton kernel under the four tools of compute-sanitizer, on a machine with an NVIDIA GPU: writes
docs/sanitizers.md.

    python scripts/sanitizers.py [OPERATOR...] [--page FILE] [--kept FILE] [--limit SECONDS] [--workers N]

Kernels are compiled first, side by side. Then processes, each under one tool, run some small cases of several kernels
one after another. racecheck sees every dtype, the other tools bfloat16, or float32 where a kernel takes no other. A
kernel whose process ended early is asked again in a process of its own. What is not done when the limit has passed is
said to be not asked, never clean. What --kept says was clean for the same sources is not asked again; what is clean now
is added to it. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from opforge.backends import backend  # noqa: E402
from opforge.backends.cache import cache_root  # noqa: E402
from opforge.backends.shared_code import source_sha256  # noqa: E402
from opforge.core.errors import OpforgeError  # noqa: E402
from opforge.core.operator import Case  # noqa: E402
from opforge.registry import load  # noqa: E402
from opforge.runner import Isolated  # noqa: E402
from opforge.runner.sanitizer import TOOLS, Sanitized, program, sanitize  # noqa: E402
from opforge.verify import CaseCache  # noqa: E402
from opforge.verify.extra.sanitize import SHARED_ROWS, cases_for, job_for, ready  # noqa: E402

BACKENDS = ("cuda", "triton")
ORDER = ("racecheck", "memcheck", "synccheck", "initcheck")
DTYPES = ("float32", "float16", "bfloat16")
TOGETHER = 16
"""Jobs that share a process: the start of one, with torch and a context under the tool, costs as much as several of
them.
"""
MOST = 64
STRIDED, PLAIN = 2, 3
"""Of each kernel, so many cases with gaps and so many without, beside the one that a cluster of blocks shares: what
the others add is in values, at which no tool looks.
"""
assert set(ORDER) == set(TOOLS)


@dataclass(frozen=True)
class Asked:
    """One kernel in one dtype under one tool."""

    operator: str
    implementation: str
    backend: str
    dtype: str
    tool: str

    @property
    def label(self) -> str:
        return f"{self.operator}/{self.implementation} {self.dtype} "


@dataclass(frozen=True)
class Seen:
    """What came of it: clean in `cases` cases, findings, "" or why it ended early."""

    cases: int
    refused: int
    findings: tuple[str, ...]
    stopped: str


def build(name: str) -> str:
    """Compile one kernel for the device that is here; why it could not be, or ""."""
    operator, implementation = name.split("/")
    try:
        found = load().implementation(operator, implementation)
        backend("cuda").build(found, found.default, "cuda")  # type: ignore[attr-defined]
    except OpforgeError as error:
        return f"{name}: {error}"
    return ""


def few(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Of the cases that `opforge verify --sanitize` asks, those that take other ways through a kernel."""
    shared = [case for case in cases if case.name == SHARED_ROWS.name]
    rest = [case for case in cases if case.name != SHARED_ROWS.name]
    plain = [case for case in rest if case.layout == "contiguous"]
    return (*shared, *plain[:PLAIN], *[case for case in rest if case not in plain][:STRIDED])


def run(together: Sequence[Asked], jobs: dict[Asked, dict], caches: str, limit_s: float) -> dict[Asked, Seen]:
    """One process; and one for each that it did not come to, or broke off at."""
    environment = {**backend("triton").environment("cuda"), "TRITON_CACHE_DIR": caches}
    told = sanitize(together[0].tool, [jobs[asked] for asked in together], environment, limit_s)
    found = {asked: seen_of(asked, told) for asked in together}
    if told.stopped and len(together) > 1:
        # what stopped it belongs to the first that did not end; those after it were not asked
        for asked in together:
            if found[asked].cases + found[asked].refused < len(jobs[asked]["cases"]):
                found[asked] = run([asked], jobs, caches, limit_s)[asked]
    return found


def seen_of(asked: Asked, told: Sanitized) -> Seen:
    """What a process saw of one of those it was asked."""
    mine = tuple(str(finding) for finding in told.findings if finding.case.startswith(asked.label))
    done = sum(case.startswith(asked.label) for case in told.done)
    refused = sum(case.startswith(asked.label) for case, _ in told.refused)
    return Seen(cases=done, refused=refused, findings=mine, stopped=told.stopped)


def kept(file: Path | None, sources: Mapping[Asked, str]) -> dict[Asked, Seen]:
    """What was clean before for the sources that are here now."""
    found: dict[Asked, Seen] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file is not None and file.is_file() else ():
        said = json.loads(line)
        source, cases, refused = (said.pop(name) for name in ("source", "cases", "refused"))
        if sources.get(asked := Asked(**said)) == source:
            found[asked] = Seen(cases=cases, refused=refused, findings=(), stopped="")
    return found


def cell(seen: Seen | None) -> str:
    """A cell of the table."""
    if seen is None:
        return "not asked"
    if seen.findings:
        return f"**{len(seen.findings)}**"
    if seen.stopped:
        return "**ended early**"
    return str(seen.cases) if seen.cases else "takes none"


def page(found: dict[Asked, Seen], wanted: Sequence[Asked], took_s: float) -> str:
    """docs/sanitizers.md."""
    import torch

    version = (
        subprocess.run([program(), "--version"], capture_output=True, text=True, check=False)
        .stdout.strip()
        .splitlines()
        or ["compute-sanitizer"]
    )[-1]
    software = f"{version}, CUDA {torch.version.cuda}, torch {torch.__version__.split('+')[0]}"
    columns = [*(f"racecheck: {dtype}" for dtype in DTYPES), *ORDER[1:]]
    lines = [
        "# Kernels under compute-sanitizer",
        "",
        f"{torch.cuda.get_device_name()}, {software}, {time.strftime('%d %B %Y')}; {took_s:.0f} s.",
        "Renew with `python scripts/sanitizers.py`. A number is the cases that ran and in which nothing was "
        "found; a **bold** one counts findings, which stand below.",
        "How races are told from false alarms: [verification.md](verification.md#races-and-false-alarms).",
        "",
        f"| kernel | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
    ]
    by_kernel: dict[str, dict[tuple[str, str], Seen | None]] = defaultdict(dict)
    for asked in wanted:
        by_kernel[f"{asked.operator}/{asked.implementation}"][asked.tool, asked.dtype] = found.get(asked)
    for kernel, cells in by_kernel.items():
        row = [cell(cells["racecheck", dtype]) if ("racecheck", dtype) in cells else "" for dtype in DTYPES]
        for tool in ORDER[1:]:
            kinds = [seen for (of, _), seen in cells.items() if of == tool]
            told = next(
                (seen for seen in kinds if seen is not None and (seen.findings or seen.stopped or seen.cases)), kinds[0]
            )
            row.append(cell(told))
        lines.append(f"| {kernel} | {' | '.join(row)} |")
    with_findings, ran = sum(bool(seen.findings) for seen in found.values()), sum(seen.cases for seen in found.values())
    lines += ["", f"{len(by_kernel)} kernels, {ran} runs; findings in {with_findings} of {len(found)} questions."]
    for asked, seen in found.items():
        if seen.findings or seen.stopped:
            lines += [
                "",
                f"## {asked.label.strip()}: {asked.tool}",
                "",
                *(f"- {finding}" for finding in dict.fromkeys(seen.findings)),
            ]
            lines += [f"- ended early: {seen.stopped}"] if seen.stopped else []
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "sanitizers.md")
    parser.add_argument("--kept", type=Path, help="a file of what was clean before, and when")
    parser.add_argument("--limit", type=float, default=340.0, help="seconds after which nothing more is begun")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 4)
    options = parser.parse_args()
    began = time.monotonic()
    ready("cuda")
    os.environ.setdefault("OPFORGE_CACHE", str(cache_root()))
    registry = load()
    names = options.operators or [operator.name for operator in registry.operators()]
    kernels = [
        (name, stem)
        for name in names
        for stem in registry.operator(name).implementations
        if stem.split("_")[0] in BACKENDS
    ]
    with ProcessPoolExecutor(options.workers) as pool:
        failed = [
            words
            for words in pool.map(build, [f"{name}/{stem}" for name, stem in kernels if stem.startswith("cuda")])
            if words
        ]
    print(f"compiled after {time.monotonic() - began:.0f} s", *failed, sep="\n", flush=True)

    jobs: dict[Asked, dict] = {}
    with Isolated() as host:
        for name, stem in kernels:
            operator = registry.operator(name)
            bench = CaseCache(registry=registry, operator=operator, host=host, device="cuda")
            for tool in ORDER:
                narrow = [dtype for dtype in ("bfloat16", "float32") if dtype in operator.dtypes] or list(
                    operator.dtypes
                )
                for dtype in operator.dtypes if tool == "racecheck" else narrow:
                    asked = Asked(name, stem, stem.split("_")[0], dtype, tool)
                    jobs[asked] = job_for(
                        bench,
                        registry.implementation(name, stem),
                        dtype,
                        few(cases_for(bench, dtype, MOST)),
                        label=asked.label,
                    )
    sources = {
        asked: source_sha256(registry.implementation(asked.operator, asked.implementation).source) for asked in jobs
    }
    found = kept(options.kept, sources)
    before = set(found)
    with tempfile.TemporaryDirectory() as caches, ThreadPoolExecutor(options.workers) as pool:

        def ask(together: Sequence[Asked]) -> None:
            left = options.limit - (time.monotonic() - began)
            if left > 10:
                found.update(run(together, jobs, caches, min(150.0, left + 40)))

        def ask_all(wanted: Sequence[Asked]) -> None:
            batches = []
            for tool in ORDER:
                mine = [asked for asked in wanted if asked.tool == tool and asked not in before]
                parts = max(1, -(-len(mine) // TOGETHER))
                # kernels of one operator apart from each other: the slow ones do not meet in one process
                batches += [mine[part::parts] for part in range(parts)]
            list(pool.map(ask, [batch for batch in batches if batch]))

        first = [
            asked
            for asked in jobs
            if asked.tool == "racecheck"
            or asked.dtype != "float32"
            or "bfloat16" not in registry.operator(asked.operator).dtypes
        ]
        ask_all(first)
        taken = {(asked.tool, asked.operator, asked.implementation) for asked, seen in found.items() if seen.cases}
        ask_all(
            [
                asked
                for asked in jobs
                if asked not in first and (asked.tool, asked.operator, asked.implementation) not in taken
            ]
        )
    options.page.write_text(page(found, list(jobs), time.monotonic() - began), encoding="utf-8")
    if options.kept:
        with options.kept.open("a", encoding="utf-8") as file:
            for asked, seen in found.items():
                if asked not in before and not seen.findings and not seen.stopped:
                    said = {**vars(asked), "source": sources[asked], "cases": seen.cases, "refused": seen.refused}
                    file.write(json.dumps(said) + "\n")
    bad = [asked for asked, seen in found.items() if seen.findings or seen.stopped]
    print(
        f"{len(found)} of {len(first)} asked in {time.monotonic() - began:.0f} s; findings or an early end in "
        f"{len(bad)}"
    )
    for asked in bad:
        print(asked.tool, asked.label, *(found[asked].findings[:2] or (found[asked].stopped,)), sep="\n   ")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
