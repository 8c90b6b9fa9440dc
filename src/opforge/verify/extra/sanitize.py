"""A kernel under compute-sanitizer: what its accesses say, beside the values that the oracle judges."""

from __future__ import annotations

import dataclasses
from typing import Any

from opforge.backends import Native, backend
from opforge.core import units
from opforge.core.errors import EnvironmentLacks
from opforge.core.implementation import Config, Implementation
from opforge.core.operator import Case
from opforge.core.verdict import Broken, Pass, Statement
from opforge.runner import fresh_seed
from opforge.runner.sanitizer import Sanitized, sanitize
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
    from opforge.runner.sanitizer import program

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
    return outcome(
        sanitize(tool, job, backend(implementation.backend).environment(bench.device), LIMIT_S), chosen, dtype, proof
    )


def job_for(
    bench: CaseCache,
    implementation: Implementation,
    dtype: str,
    cases: tuple[Case, ...],
    config: Config | None = None,
    label: str = "",
) -> dict[str, Any]:
    """What `runner.sanitizer_process` is told to run. `label` goes before the names of cases, where several jobs share
    a process.
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
