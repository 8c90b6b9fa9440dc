"""Verification at one shape, which somebody asks for: its own values, the ends of its memory, and every distribution of
the operator's cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case, Operator, Workload
from opforge.core.evidence.verdict import Verdict
from opforge.trial.baselines import as_baseline
from opforge.verify import EXACT, CaseCache, verify
from opforge.verify.cases.case_cache import Undefined
from opforge.verify.cases.hidden import distributions, elements

LARGE = 1 << 22
"""Elements of a tensor from which on two cases are all: the oracle takes seconds for each of ten distributions then."""
EFFORT = replace(EXACT, seconds=0.5, repeats=40, shrink_s=2.0)
"""These cases alone, one of them again and again; a failure is shrunk."""


def as_case(workload: Workload) -> Case:
    """The workload as a case to verify."""
    return Case(
        name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars, layout=workload.layout
    )


def cases_at(operator: Operator, workload: Workload, dtype: str) -> Iterator[Case]:
    """The cases at a shape: as it is; each tensor up to the end of its memory; where it is small, the operator's other
    distributions.
    """
    case = as_case(workload)
    yield case
    if workload.layout == "contiguous":
        yield replace(case, name=f"{case.name} fenced", layout="fenced", why="each tensor ends where memory ends")
    for kind in distributions(operator, dtype) if elements(operator, case) <= LARGE else ():
        if kind != case.distribution:
            yield replace(case, name=f"{case.name} {kind}", distribution=kind)


def verify_shape(
    cases: CaseCache, implementation: Implementation, workload: Workload, dtype: str, config: Config | None
) -> Verdict:
    """The Verdict on an implementation at this shape alone: nobody's evidence that it is right at others."""
    prepared = (cases.prepare_if_defined(case, dtype) for case in cases_at(cases.operator, workload, dtype))
    asked = [item.case for item in prepared if not isinstance(item, Undefined)]
    return as_baseline(implementation, verify(cases, implementation, dtype, cases=asked, config=config, effort=EFFORT))
