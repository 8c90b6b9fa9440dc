"""Calls run once before they are timed, so that a bench that follows waits for no compiler: what the JITs make is kept
on disk by source and shape."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from opforge.backends import Missing, backend
from opforge.core.definition.operator import Operator
from opforge.core.evidence.verdict import Proof, Verdict
from opforge.registry import Registry
from opforge.runner import Host
from opforge.trial import Clock, Point, Ready, Setting, bind, compiling_ahead, leave
from opforge.verify import CaseCache, WorkerPool
from opforge.workbench.bench import at_once
from opforge.workbench.bench_options import BenchOptions, workloads_for
from opforge.workbench.shape_verification import as_case


def rehearse(
    registry: Registry,
    operator: Operator,
    calls: Sequence[tuple[str, str]],
    device: str,
    host: Host,
    proofs: Mapping[tuple[str, str, str], Proof],
) -> list[Verdict]:
    """Run each implementation once on each of the calls, names of a workload and a dtype; what was wrong there.

    proofs   by operator, implementation and dtype; what has none is not run
    """
    able = [
        item
        for item in registry.implementations(operator.name)
        if not isinstance(backend(item.backend).execution_mode(device), Missing)
    ]
    workloads = {
        workload.name: workload
        for workload in workloads_for(
            operator, BenchOptions(device=device, workloads=tuple({name for name, _ in calls}))
        )
    }
    wrong: list[Verdict] = []
    pool = WorkerPool(host=host, device=device, kept=True)
    cases = CaseCache(registry=registry, operator=operator, host=host, device=device, pool=pool)
    with contextlib.closing(pool), contextlib.closing(cases), compiling_ahead(able, device):
        for name, dtype in calls:
            points = [
                Point(implementation=item, proof=proof)
                for item in able
                if (proof := proofs.get((operator.name, item.name, dtype))) is not None
            ]
            if not points or name not in workloads:
                continue
            case = as_case(workloads[name])
            setting = Setting(
                cases=cases,
                pool=pool,
                prepared=cases.prepare(case, dtype),
                clock=Clock(device=device),
                at_once=at_once(device),
            )
            bound = bind(setting, points)
            ready = [item for item in bound if isinstance(item, Ready)]
            leave(setting, ready, ready)
            wrong += [item.verdict for item in bound if not isinstance(item, Ready)]
            cases.forget(case)
    return wrong
