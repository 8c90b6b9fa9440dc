"""The record of what a candidate came to: made here alone, so that no time stands in one without a verdict that allows
it.
"""

from __future__ import annotations

import datetime
import uuid
from dataclasses import replace

from opforge.backends.program_hash import program_sha256
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case, Operator, Workload
from opforge.core.evidence.record import Environment, Record
from opforge.core.evidence.timing import Timing, Untimed
from opforge.core.evidence.verdict import Verdict, may_be_timed
from opforge.core.language.printed import Printed
from opforge.machine import detect, renewed_ceilings
from opforge.roofline import bound, suspect


def recorded(
    operator: Operator,
    implementation: Implementation,
    case: Workload | Case | None,
    dtype: str,
    verdict: Verdict,
    timing: Timing | Untimed | None,
    *,
    device: str,
    environment: Environment,
    run: str,
    config: Config | None = None,
    trial: bool = False,
    printed: Printed | None = None,
    compile_s: float | None = None,
) -> Record:
    """The Record of one result on a torch device type. Without a case it is a verification, of the operator's cases
    alone.

    The time is left out where the verdict allows none (core.evidence.verdict.may_be_timed). It is marked where it is
    better than this device was measured to be, when that was measured again, too: ceilings of a busy machine are too
    low. `config` None is the implementation's default; `trial`, `printed` and `compile_s` as
    core.evidence.record.Record has them.
    """
    spec = detect(device)
    axes = dict(case.axes) if case else {}
    scalars = operator.scalar_values(case.scalars if case else {})
    cost = operator.cost(axes if case else operator.cases[0].axes, dtype, scalars)
    form = operator.compute_dtype_of(dtype, scalars)
    kept = timing if isinstance(timing, Timing) and may_be_timed(verdict, implementation.backend) else None
    doubt = suspect(cost, kept, spec, form, operator.unit) if kept else None
    if kept and doubt and renewed_ceilings(device):
        spec = detect(device)
        doubt = suspect(cost, kept, spec, form, operator.unit)
    roof = bound(cost, spec, form, operator.unit, cache=kept.cache if kept else "warm") if case else None
    return Record(
        id=uuid.uuid4().hex,
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        operator=operator.name,
        implementation=implementation.name,
        backend=implementation.backend,
        source_sha256=source_sha256(implementation.source),
        code_sha256=program_sha256(implementation),
        workload=case.name if case else "",
        axes=axes,
        scalars=scalars,
        dtype=dtype,
        device=spec.name,
        config=config or implementation.default,
        cost=cost,
        verdict=verdict,
        timing=replace(kept, suspect=doubt) if kept else None,
        roof_s=roof.time_s if roof else None,
        limiter=roof.limiter if roof else None,
        environment=environment,
        run=run,
        trial=trial,
        layout=case.layout if case else "contiguous",
        printed=printed,
        compile_s=compile_s,
    )
