"""Whether an implementation is right on its operator's cases, as whoever times it afterwards asks."""

from __future__ import annotations

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.evidence.verdict import Pass, Verdict
from opforge.trial.baselines import as_baseline
from opforge.trial.verified_before import stated
from opforge.verify import CaseCache, Effort, verify


def check(
    cases: CaseCache, implementation: Implementation, dtype: str, effort: Effort, config: Config | None = None
) -> Verdict:
    """The Verdict; of a baseline that is known to be inaccurate, Inaccurate. A Pass of a full verification states its
    version (see trial.proven).
    """
    verdict = as_baseline(implementation, verify(cases, implementation, dtype, config=config, effort=effort))
    full = effort.own or implementation.backend == "compile"
    return stated(verdict, cases.operator) if full and isinstance(verdict, Pass) else verdict
