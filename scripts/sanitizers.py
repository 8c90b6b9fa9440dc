"""Every CUDA and Triton kernel under the four tools of compute-sanitizer, on a machine with an NVIDIA GPU: writes
docs/sanitizers.md, from docs/sanitizers.jsonl.

    python scripts/sanitizers.py [OPERATOR...] [--limit SECONDS] [--workers N] [--known FILE] [--page FILE]
    python scripts/sanitizers.py --page-only        # anywhere: the page from what is known

CUDA kernels are compiled side by side, and Triton's asked meanwhile. Processes, each under one tool, run some small
cases of several kernels one after another: racecheck first, and of each operator the kernels that come first in its
order of preference. racecheck sees every dtype, the other tools bfloat16, or float32 where a kernel takes no other. A
kernel whose process ended early is asked again in a process of its own. Every answer is a line of FILE at once, with
the hash of what the kernel and all shared code that it reaches say to the compiler: a run that is cut off goes on where
it was, and what is known of the same sources is not asked again, unless something was found. What nobody asked, or
asked of other sources, the page says so, never clean. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from opforge.backends import backend  # noqa: E402
from opforge.backends.cache import cache_root  # noqa: E402
from opforge.backends.program_hash import program_sha256  # noqa: E402
from opforge.core.definition.operator import Case  # noqa: E402
from opforge.core.language.errors import OpforgeError  # noqa: E402
from opforge.registry import Registry, load  # noqa: E402
from opforge.runner import Isolated  # noqa: E402
from opforge.runner.worker.sanitizer import TOOLS, Sanitized, program, sanitize  # noqa: E402
from opforge.verify import CaseCache  # noqa: E402
from opforge.verify.extra.sanitize import (  # noqa: E402
    SHARED_ROWS,
    cases_for,
    hand_over_lines,
    job_for,
    ready,
    without_hand_overs,
)

KNOWN, PAGE = ROOT / "docs" / "sanitizers.jsonl", ROOT / "docs" / "sanitizers.md"
BACKENDS = ("cuda", "triton")
ORDER = ("racecheck", "memcheck", "synccheck", "initcheck")
DTYPES = ("float32", "float16", "bfloat16")
TOGETHER = 12
"""Jobs that share a process: the start of one, with torch and a context under the tool, costs as much as several of
them.
"""
MOST = 64
STRIDED, PLAIN = 2, 3
"""Of each kernel, so many cases with gaps and so many without, beside the one that a cluster of blocks shares: what
the others add is in values, at which no tool looks.
"""
assert set(ORDER) == set(TOOLS)


EXPLAINED = {
    ("matmul_fp8/cuda_stream", "racecheck", "opforge::stream::"): (
        "every way from the writes (`consume`) to the reads (`add_up`) goes through `__syncthreads` or a barrier of "
        "the cluster (`product_stream`), and no way leads back. The tool names other threads, cases and dtypes each "
        "time. A further barrier of all threads before the writes changed nothing"
    ),
    ("attention_backward/cuda_wgmma_ordered", "synccheck", "opforge::hopper::named_barrier"): (
        "a warpgroup and one warp, each whole, meet at `bar.sync 2 + group, 160` from two places in the source, as "
        "often from the one as from the other. A kernel of ten lines that does nothing else is reported in the same "
        "words, whether other warps end or wait meanwhile, and is clean once the same barrier is written "
        "`barrier.sync`, which asks for no whole warps (seen on an H100)"
    ),
}
"""Kernel and tool, what each finding names, and why it is no defect."""
MOST_SHOWN = 3
PLACE = re.compile(r"\b\w+\.py:\d+")


@dataclass(frozen=True)
class Asked:
    """One kernel in one dtype under one tool."""

    operator: str
    implementation: str
    dtype: str
    tool: str

    @property
    def kernel(self) -> str:
        return f"{self.operator}/{self.implementation}"

    @property
    def label(self) -> str:
        return f"{self.kernel} {self.dtype} "


@dataclass(frozen=True)
class Seen:
    """What came of it: clean in `cases` cases, findings, "" or why it ended early; of which source, where and when."""

    cases: int
    refused: int
    findings: tuple[str, ...] = ()
    stopped: str = ""
    source: str = ""
    where: str = ""

    @property
    def bad(self) -> bool:
        return bool(self.findings or self.stopped)


def build(name: str) -> str:
    """Compile one kernel for the device that is here; why it could not be, or ""."""
    operator, implementation = name.split("/")
    try:
        found = load().implementation(operator, implementation)
        backend("cuda").build(found, found.default, "cuda")  # type: ignore[attr-defined]
    except OpforgeError as error:
        return f"{name}: {error}"
    return ""


def questions(registry: Registry, names: Sequence[str] = ()) -> list[Asked]:
    """All that can be asked of these operators, () for all, in the order in which it is."""
    found: list[tuple[tuple[int, int, int], Asked]] = []
    for number, operator in enumerate(registry.operators()):
        if names and operator.name not in names:
            continue
        stems = [stem for stem in operator.implementations if stem.split("_")[0] in BACKENDS]
        for preference, stem in enumerate(stems):
            for tool in ORDER:
                for dtype in operator.dtypes if tool == "racecheck" else narrow(operator.dtypes):
                    found.append(((ORDER.index(tool), preference, number), Asked(operator.name, stem, dtype, tool)))
    return [asked for _, asked in sorted(found, key=lambda item: item[0])]


def narrow(dtypes: Sequence[str]) -> list[str]:
    """The dtypes of the tools to which values mean nothing, the first that a kernel takes."""
    return [dtype for dtype in ("bfloat16", "float32") if dtype in dtypes] or list(dtypes)


def sources_of(registry: Registry, wanted: Sequence[Asked]) -> dict[str, str]:
    """The hash of what each kernel's source says to the compiler, by its name: comments, limits and spaces have no part
    in it (backends/program_hash.py).
    """
    kernels = {asked.kernel: (asked.operator, asked.implementation) for asked in wanted}
    return {kernel: program_sha256(registry.implementation(*names)) for kernel, names in kernels.items()}


def few(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Of the cases that `opforge verify --sanitize` asks, those that take other ways through a kernel."""
    shared = [case for case in cases if case.name == SHARED_ROWS.name]
    rest = [case for case in cases if case.name != SHARED_ROWS.name]
    plain = [case for case in rest if case.layout == "contiguous"]
    return (*shared, *plain[:PLAIN], *[case for case in rest if case not in plain][:STRIDED])


def run(
    together: Sequence[Asked],
    jobs: Mapping[Asked, dict[str, Any]],
    files: Mapping[Asked, Path],
    caches: str,
    limit_s: float,
) -> dict[Asked, Seen]:
    """One process; and one for each that it did not come to, or broke off at."""
    environment = {**backend("triton").environment("cuda"), "TRITON_CACHE_DIR": caches}
    told = sanitize(together[0].tool, [jobs[asked] for asked in together], environment, limit_s)
    found = {asked: seen_of(asked, without_hand_overs(told, files[asked])) for asked in together}
    if told.stopped and len(together) > 1:
        # what stopped it belongs to the first that did not end; those after it were not asked
        for asked in together:
            if found[asked].cases + found[asked].refused < len(jobs[asked]["cases"]):
                found[asked] = run([asked], jobs, files, caches, limit_s)[asked]
    return found


def seen_of(asked: Asked, told: Sanitized) -> Seen:
    """What a process saw of one of those it was asked."""
    mine = tuple(str(finding) for finding in told.findings if finding.case.startswith(asked.label))
    done = sum(case.startswith(asked.label) for case in told.done)
    refused = sum(case.startswith(asked.label) for case, _ in told.refused)
    return Seen(cases=done, refused=refused, findings=tuple(dict.fromkeys(mine)), stopped=told.stopped)


def read(file: Path) -> dict[Asked, Seen]:
    """What is known, the latest answer to each question."""
    found: dict[Asked, Seen] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        said = json.loads(line)
        asked = Asked(*(said.pop(name) for name in ("operator", "implementation", "dtype", "tool")))
        found[asked] = Seen(**{**said, "findings": tuple(said.get("findings", ()))})
    return found


def line_of(asked: Asked, seen: Seen) -> str:
    """A line of the file."""
    said = {**asdict(asked), **{name: value for name, value in asdict(seen).items() if value or name == "cases"}}
    return json.dumps({"refused": 0, **said}) + "\n"


def cell(answers: Sequence[Seen | None], source: str) -> str:
    """A cell of the table, of the answers in the dtypes that were asked one after another."""
    here = [seen for seen in answers if seen is not None and seen.source == source]
    if any(seen.findings for seen in here):
        return f"**{sum(len(seen.findings) for seen in here)}**"
    if any(seen.stopped for seen in here):
        return "**ended early**"
    if here:
        cases = max(seen.cases for seen in here)
        return str(cases) if cases else "takes none" if len(here) == len(answers) else "not asked"
    return "changed since" if any(seen is not None for seen in answers) else "not asked"


def page(known: Mapping[Asked, Seen], wanted: Sequence[Asked], sources: Mapping[str, str]) -> str:
    """docs/sanitizers.md."""
    columns = [*(f"racecheck: {dtype}" for dtype in DTYPES), "racecheck: FP8", *ORDER[1:]]
    current = {
        asked: known[asked] for asked in wanted if asked in known and known[asked].source == sources[asked.kernel]
    }
    runs = Counter(seen.where for seen in current.values())
    lines = [
        "# Kernels under compute-sanitizer",
        "",
        *(f"- {count} answers: {where}" for where, count in sorted(runs.items())),
        "",
        "Renew with `python scripts/sanitizers.py`, which asks what is not known of the sources as they are; answers",
        "lie in [sanitizers.jsonl](sanitizers.jsonl). A number is the cases that ran and in which nothing was found; a",
        '**bold** one counts findings, which stand below. "not asked": by nobody; "changed since": asked of an earlier',
        'source, which says nothing of this one; "takes none": the kernel refuses these cases; empty: the operator has',
        "no such dtype.",
        "How races are told from false alarms: [verification.md](verification.md#races-and-false-alarms).",
        "",
        f"| kernel | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
    ]
    kernels = dict.fromkeys(asked.kernel for asked in sorted(wanted, key=lambda asked: asked.operator))
    counted: Counter[str] = Counter()
    for kernel in kernels:
        mine = [asked for asked in wanted if asked.kernel == kernel]
        row = []
        for tool, kinds in (
            *(("racecheck", (dtype,)) for dtype in DTYPES),
            ("racecheck", tuple({asked.dtype for asked in mine} - set(DTYPES))),
            *((tool, tuple(asked.dtype for asked in mine)) for tool in ORDER[1:]),
        ):
            asked_here = [asked for asked in mine if asked.tool == tool and asked.dtype in kinds]
            row.append(cell([known.get(asked) for asked in asked_here], sources[kernel]) if asked_here else "")
            counted[row[-1] if row[-1] in ("not asked", "changed since", "") else "answered"] += 1
        lines.append(f"| {kernel} | {' | '.join(row)} |")
    bad = {asked: seen for asked, seen in current.items() if seen.bad}
    registry = load()
    why = {asked: explained(registry, asked, seen) for asked, seen in bad.items()}
    open_now = {asked: seen for asked, seen in bad.items() if not why[asked]}
    lines += [
        "",
        f"{len(kernels)} kernels. Of {sum(counted.values()) - counted['']} cells {counted['answered']} are answered, "
        f"{counted['changed since']} were asked of earlier sources, {counted['not asked']} of none; findings in "
        f"{sum(bool(seen.findings) for seen in bad.values())}, "
        f"{len(bad) - len(open_now)} of them explained.",
    ]
    if open_now:
        lines += ["", "What stands below is neither explained nor mended: nobody has shown that it is a false alarm."]
    for asked, seen in sorted(bad.items(), key=lambda item: item[0] not in open_now):
        lines += ["", f"## {asked.label.strip()}: {asked.tool}", ""]
        lines += [f"No {'race' if asked.tool == 'racecheck' else 'defect'}: {why[asked]}.", ""] if why[asked] else []
        lines += [f"- {finding}" for finding in seen.findings[:MOST_SHOWN]]
        more = len(seen.findings) - MOST_SHOWN
        lines += [f"- and {more} more: sanitizers.jsonl"] if more > 0 else []
        lines += [f"- ended early: {seen.stopped}"] if seen.stopped else []
    return "\n".join(lines) + "\n"


def explained(registry: Registry, asked: Asked, seen: Seen) -> str:
    """Why nothing that was found is a defect; "" where some of it may be."""
    source = registry.implementation(asked.operator, asked.implementation).source
    if asked.tool == "racecheck" and seen.findings and not seen.stopped and source.suffix == ".py":
        lines = hand_over_lines(source)
        if all(PLACE.search(finding) and set(PLACE.findall(finding)) <= lines for finding in seen.findings):
            return "Triton's own hand-over to the warps of `warp_specialize`, which is set aside since"
    for (kernel, tool, name), why in EXPLAINED.items():
        named = all(name in finding for finding in seen.findings)
        if (kernel, tool) == (asked.kernel, asked.tool) and seen.findings and named and not seen.stopped:
            return why
    return ""


def where_now() -> str:
    """Device, tool and software, and the day."""
    import torch

    told = subprocess.run([program(), "--version"], capture_output=True, text=True, check=False).stdout
    version = (told.strip().splitlines() or ["compute-sanitizer"])[-1]
    software = f"{version}, CUDA {torch.version.cuda}, torch {torch.__version__.split('+')[0]}"
    return f"{torch.cuda.get_device_name()}, {software}, {time.strftime('%d %B %Y')}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--known", type=Path, default=KNOWN, help="the answers, a line each; new ones are added")
    parser.add_argument("--page-only", action="store_true", help="write the page from what is known, and ask nothing")
    parser.add_argument("--limit", type=float, default=230.0, help="seconds after which nothing more is begun")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 4)
    options = parser.parse_args()
    registry = load()
    everything = questions(registry)
    sources = sources_of(registry, everything)
    found: dict[Asked, Seen] = {}
    if not options.page_only:
        found = ask_all(registry, questions(registry, options.operators), sources, options)
    options.page.write_text(page(read(options.known), everything, sources), encoding="utf-8")
    bad = [asked for asked, seen in found.items() if seen.bad]
    for asked in bad:
        print(asked.tool, asked.label, *(found[asked].findings[:2] or (found[asked].stopped,)), sep="\n   ")
    print(next(line for line in options.page.read_text(encoding="utf-8").splitlines() if " kernels. Of " in line))
    return 1 if bad else 0


def ask_all(
    registry: Registry, wanted: Sequence[Asked], sources: Mapping[str, str], options: argparse.Namespace
) -> dict[Asked, Seen]:
    """What is not known of these sources, asked until the limit; each answer is written at once."""
    began, lock = time.monotonic(), Lock()
    ready("cuda")
    os.environ.setdefault("OPFORGE_CACHE", str(cache_root()))
    known = {
        asked: seen
        for asked, seen in read(options.known).items()
        if seen.source == sources.get(asked.kernel) and not seen.bad
    }
    open_now = [asked for asked in wanted if asked not in known]
    names = sorted({asked.kernel for asked in open_now if asked.implementation.startswith("cuda")})
    print(f"{len(open_now)} questions", flush=True)
    jobs: dict[Asked, dict[str, Any]] = {}
    files = {asked: registry.implementation(asked.operator, asked.implementation).source for asked in open_now}
    with Isolated() as host:
        for asked in open_now:
            bench = CaseCache(registry=registry, operator=registry.operator(asked.operator), host=host, device="cuda")
            implementation = registry.implementation(asked.operator, asked.implementation)
            cases = few(cases_for(bench, asked.dtype, MOST))
            jobs[asked] = job_for(bench, implementation, asked.dtype, cases, label=asked.label)
    where, found = where_now(), dict(known)
    new: dict[Asked, Seen] = {}
    with (
        # not by fork: this process has the device open
        ProcessPoolExecutor(
            max(1, min(options.workers // 2, len(names))), multiprocessing.get_context("spawn")
        ) as builders,
        tempfile.TemporaryDirectory() as caches,
        ThreadPoolExecutor(options.workers) as pool,
    ):
        # Triton's kernels are asked meanwhile
        built = {name: builders.submit(build, name) for name in names}

        def ask(together: Sequence[Asked]) -> None:
            for asked in together:
                if asked.kernel in built and (failed := built[asked.kernel].result()):
                    print(failed, flush=True)
            left = options.limit - (time.monotonic() - began)
            if left < 10:
                return
            for asked, seen in run(together, jobs, files, caches, min(150.0, left)).items():
                answer = Seen(**{**asdict(seen), "source": sources[asked.kernel], "where": where})
                if left < 150 and answer.stopped:
                    continue  # ended by the limit, which says nothing of it
                with lock, options.known.open("a", encoding="utf-8") as out:
                    found[asked] = new[asked] = answer
                    out.write(line_of(asked, answer))

        def round_of(mine: Sequence[Asked]) -> None:
            # two processes a worker at the least: attention's kernels take a minute each under racecheck
            size = max(1, min(TOGETHER, len(mine) // (2 * options.workers)))
            batches = []
            for compiled, tool in itertools.product((False, True), ORDER):
                same = [asked for asked in mine if (asked.kernel in built, asked.tool) == (compiled, tool)]
                # what comes first in the order is begun first; kernels of one operator lie apart from each other
                batches += [same[first : first + size] for first in range(0, len(same), size)]
            list(pool.map(ask, batches))

        def first_kind(asked: Asked) -> bool:
            return asked.tool == "racecheck" or asked.dtype == narrow(registry.operator(asked.operator).dtypes)[0]

        round_of([asked for asked in open_now if first_kind(asked)])
        taken = {(asked.tool, asked.kernel) for asked, seen in found.items() if seen.cases}
        round_of([asked for asked in open_now if not first_kind(asked) and (asked.tool, asked.kernel) not in taken])
    print(f"{len(new)} answers in {time.monotonic() - began:.0f} s; something in {sum(x.bad for x in new.values())}")
    return new


if __name__ == "__main__":
    raise SystemExit(main())
