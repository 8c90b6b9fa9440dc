"""An operator's cases run in several processes at once, before they are judged one after another: some compilers take a
second for each of them, and keep what they made.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Mismatch
from opforge.core.language import spans
from opforge.core.language.errors import EnvironmentLacks
from opforge.runner import WorkerDied, WorkerLate
from opforge.runner.wire.messages import Release
from opforge.trial import Setting
from opforge.verify import CaseCache, Ran, run_once

SIDE_BY_SIDE = 4


@spans.spanned(lambda setting, implementation, dtype, config: ("compile cases", implementation.name, ""))
def compile_cases(setting: Setting, implementation: Implementation, dtype: str, config: Config) -> None:
    """Run each of the operator's cases once. What comes of it nobody looks at: they are judged afterwards."""
    shared = setting.cases
    own = [case for case in shared.operator.cases if case.dtype in (None, dtype)]

    def run(part: Sequence[Case]) -> None:
        # with memory of its own
        cases = CaseCache(
            registry=shared.registry,
            operator=shared.operator,
            host=shared.host,
            device=shared.device,
            run_limit_s=shared.run_limit_s,
            pool=shared.pool,
        )
        with closing(cases):
            worker, whole = setting.pool.take(implementation), False
            try:
                with suppress(WorkerDied, WorkerLate, EnvironmentLacks):
                    right = True
                    for case in part:
                        ran = run_once(cases, worker, implementation, cases.prepare(case, dtype), config)
                        if isinstance(ran, Ran) and ran.launch:
                            worker.request(Release(launch=ran.launch))
                        right &= not (isinstance(ran, Ran) and (not ran.launch or isinstance(ran.outcome, Mismatch)))
                    whole = right
            finally:
                setting.pool.leave(implementation, worker, whole=whole)

    parts = [part for place in range(SIDE_BY_SIDE) if (part := own[place::SIDE_BY_SIDE])]
    with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as threads:
        list(threads.map(run, parts))
