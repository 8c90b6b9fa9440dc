"""A kernel under compute-sanitizer: what its accesses say, beside the values that the oracle judges."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

from opforge.backends import Native, backend
from opforge.backends.shared_code import modules_of
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Broken, Pass, Statement
from opforge.core.language import units
from opforge.core.language.errors import EnvironmentLacks
from opforge.runner import fresh_seed
from opforge.runner.worker.sanitizer import Sanitized, SanitizerFinding, sanitize
from opforge.verify.cases.case_cache import CaseCache
from opforge.verify.cases.hidden import reduced

MOST_CASES = 8
MOST_ELEMENTS = 1 << 14
"""Instrumented kernels are ten to a hundred times slower, and small cases have all the ends that large ones have."""
SHARED_ROWS = Case(
    name="shared_rows",
    axes={"lead": (2,), "cols": 32832},
    why="more than one block holds: what the blocks of a cluster send is watched",
)
LIMIT_S = 300.0


def ready(device: str) -> None:
    """Raises EnvironmentLacks unless kernels can run under compute-sanitizer on this machine."""
    from opforge.runner.worker.sanitizer import program

    if device != "cuda":
        raise EnvironmentLacks(
            f"compute-sanitizer watches CUDA kernels, and the device is {device!r}. Run this on a machine with an "
            "NVIDIA GPU, with --device cuda."
        )
    program()


def sanitized(
    bench: CaseCache, implementation: Implementation, dtype: str, tool: str, proof: Pass, config: Config | None = None
) -> Pass | Broken:
    """The Pass with a statement of what the tool saw, or Broken when it reports anything.

    Raises EnvironmentLacks where the tool is not there.
    """
    if not isinstance(backend(implementation.backend).execution_mode(bench.device), Native):
        return dataclasses.replace(
            proof,
            statements=(
                *proof.statements,
                Statement(name=tool, holds=None, detail="not asked: the kernel does not run on the device"),
            ),
        )
    chosen = cases_for(bench, dtype)
    job = job_for(bench, implementation, dtype, chosen, config)
    seen = sanitize(tool, job, backend(implementation.backend).environment(bench.device), LIMIT_S)
    return outcome(without_hand_overs(seen, implementation.source), chosen, dtype, proof)


def job_for(
    bench: CaseCache,
    implementation: Implementation,
    dtype: str,
    cases: tuple[Case, ...],
    config: Config | None = None,
    label: str = "",
) -> dict[str, Any]:
    """What `runner.worker.sanitizer_process` is told to run. `label` goes before the names of cases, where several jobs
    share a process.
    """
    return {
        "homes": [str(home.path) for home in bench.registry.homes],
        "operator": bench.operator.name,
        "implementation": implementation.name,
        "dtype": dtype,
        "device": bench.device,
        "config": None if config is None else [list(pair) for pair in config.values],
        "label": label,
        "cases": [
            {
                "name": case.name,
                "axes": dict(case.axes),
                "distribution": case.distribution,
                "layout": case.layout,
                "scalars": dict(case.scalars),
                "seed": case.seed,
            }
            for case in cases
        ],
    }


def cases_for(bench: CaseCache, dtype: str, most: int = MOST_CASES) -> tuple[Case, ...]:
    """At most `most` small cases of the operator's own, with fresh seeds: plain ones and those with strides come first.
    Operators on rows, with no further axis, get one more, that a cluster of blocks shares.
    """
    own = [case for case in bench.operator.cases if case.dtype in (None, dtype)]
    small = sorted(
        reduced(bench.operator, own, MOST_ELEMENTS),
        key=lambda case: (case.layout == "contiguous", case.distribution != "normal"),
    )
    if {"lead", "cols"} == set(bench.operator.axes):
        small.insert(0, SHARED_ROWS)
    return tuple(dataclasses.replace(case, dtype=None, seed=fresh_seed()) for case in small[:most])


def without_hand_overs(seen: Sanitized, source: Path) -> Sanitized:
    """Without what racecheck reports of Triton's own hand-over to the warps of `warp_specialize`.

    Those wait at `barrier.sync 1` from the start, the others store which partition each runs, then come to that
    barrier, and the store is read after it. racecheck now and then takes the two for unordered, in one of five cases of
    a kernel and not in the same one next time. No access of a kernel's own lies on these lines; a race whose other
    access lies elsewhere stays.
    """
    if seen.tool != "racecheck" or source.suffix != ".py" or not seen.findings:
        return seen
    lines = hand_over_lines(source)
    return dataclasses.replace(
        seen, findings=tuple(finding for finding in seen.findings if not between(finding, lines))
    )


def hand_over_lines(source: Path) -> frozenset[str]:
    """Where compilers put the accesses of a hand-over, in a Triton file and all that it imports of opforge: the `def`
    of each function that calls `warp_specialize`, and the call; "roles.py:215".
    """
    found = set[str]()
    for file in (source, *modules_of(source).values()):
        text = file.read_text(encoding="utf-8")
        if "warp_specialize" not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            calls = [node for node in ast.walk(function) if is_hand_over(node)]
            if isinstance(function, ast.FunctionDef) and calls:
                found |= {f"{file.name}:{node.lineno}" for node in (function, *calls)}  # type: ignore[attr-defined]
    return frozenset(found)


def is_hand_over(node: ast.AST) -> bool:
    """Whether a node calls `gl.warp_specialize`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warp_specialize"


def between(finding: SanitizerFinding, lines: frozenset[str]) -> bool:
    """Whether all accesses of a race lie on these lines."""
    others = re.findall(r"\S+:\d+", finding.against)
    return bool(others) and {finding.place, *others} <= lines


def outcome(seen: Sanitized, cases: tuple[Case, ...], dtype: str, proof: Pass) -> Pass | Broken:
    """The verdict that a run under the tool gives."""
    isolation = f"a process of its own under compute-sanitizer {seen.tool}"
    if seen.findings:
        first = seen.findings[0]
        places = len({(finding.kernel, finding.place) for finding in seen.findings})
        case = next((case for case in cases if case.name == first.case), None)
        count = (
            f"{units.plural(len(seen.findings), 'finding')} in {units.plural(places, 'place')}, the first"
            if len(seen.findings) > 1
            else "one finding"
        )
        return Broken(
            case=case, dtype=dtype, reason=f"compute-sanitizer {seen.tool}: {count}: {first}", isolation=isolation
        )
    if seen.stopped:
        left = next(
            (case for case in cases if case.name not in seen.done and case.name not in dict(seen.refused)), None
        )
        return Broken(
            case=left, dtype=dtype, reason=f"under compute-sanitizer {seen.tool}: {seen.stopped}", isolation=isolation
        )
    words = (
        f"nothing found in {len(seen.done)} cases: {', '.join(seen.done)}"
        if seen.done
        else "not asked: the implementation takes none of the small cases"
    )
    return dataclasses.replace(
        proof,
        statements=(*proof.statements, Statement(name=seen.tool, holds=True if seen.done else None, detail=words)),
    )
