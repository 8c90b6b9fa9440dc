"""What a diagnosis is made of, gathered: the time on record or measured here, the compiled code, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opforge.backends import Native, backend, native
from opforge.backends.cpp import Cpp
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case, Workload
from opforge.core.evidence.diagnosis import Diagnosis
from opforge.core.evidence.record import Record
from opforge.core.language.errors import OpforgeError
from opforge.diagnose import Subject, diagnose
from opforge.diagnose.bottleneck import HostFacts
from opforge.inspect import inspect_implementation
from opforge.inspect.counters import Counters, read_counters, unreadable
from opforge.inspect.host_code import host_code
from opforge.machine import detect
from opforge.registry import Registry
from opforge.roofline import bound
from opforge.runner import fresh_seed
from opforge.store import Store
from opforge.verify import CaseCache
from opforge.verify.extra.sanitize import job_for


def on_record(
    store: Store, implementation: Implementation, workload: str, dtype: str, device: str, config: Config
) -> Record | None:
    """The newest time on record of these sources in this config, that is believed; None where there is none."""
    records = store.query(
        operator=implementation.operator, implementation=implementation.name, workload=workload, dtype=dtype,
        device=device, limit=50,
    )  # fmt: skip
    source = source_sha256(implementation.source)
    for record in reversed(records):
        timed = record.timing is not None and record.timing.suspect is None and not record.trial
        if timed and record.source_sha256 == source and record.config.as_dict() == config.as_dict():
            return record
    return None


def rivals_on_record(store: Store, record: Record) -> dict[str, float]:
    """The newest believed seconds of the operator's other implementations on the same workload, dtype and device."""
    found: dict[str, float] = {}
    others = store.query(
        operator=record.operator, workload=record.workload, dtype=record.dtype, device=record.device, limit=300
    )
    for other in others:
        if other.implementation == record.implementation or other.timing is None or other.trial:
            continue
        if other.timing.suspect is None and other.timing.cache == (record.timing or other.timing).cache:
            found[other.implementation] = other.timing.median_s
    return found


def diagnosis_of(
    registry: Registry,
    implementation: Implementation,
    workload: Workload,
    record: Record,
    *,
    device: str,
    cases: CaseCache | None = None,
    rivals: dict[str, float] | None = None,
    generated: bool = False,
    counters: Mapping[str, float] | None = None,
) -> Diagnosis:
    """The Diagnosis of what a record says.

    cases     of the operator, where counters shall be read
    counters  what a profiler left (inspect.counters.counters_at), where nothing shall be read now
    """
    operator = registry.operator(implementation.operator)
    spec = detect(device)
    scalars = operator.scalar_values(workload.scalars)
    form = operator.compute_dtype_of(record.dtype, scalars)
    roof = bound(record.cost, spec, form, operator.unit, cache=record.timing.cache if record.timing else "warm")
    subject = Subject(
        implementation=implementation,
        workload=workload.name,
        dtype=record.dtype,
        device=spec,
        config=record.config,
        cost=record.cost,
        verdict=record.verdict,
        timing=record.timing,
        roof=roof,
        rivals=rivals or {},
        generated=generated,
        **_code(registry, implementation, workload, record, spec.target),
        **({"counters": counters} if counters else _counters(implementation, workload, record, device, cases)),
    )
    return diagnose(subject)


def _code(
    registry: Registry, implementation: Implementation, workload: Workload, record: Record, target: str
) -> dict[str, Any]:
    """What the compiled code says, as fields of a Subject."""
    if implementation.backend == "cpp":
        return {"host": host_facts(implementation, record.config)}
    if implementation.backend not in ("cuda", "triton") or target in ("", "host"):
        return {"why_no_code": f"code of {implementation.backend} for {target or 'this device'} is not read"}
    try:
        inspection = inspect_implementation(
            registry,
            implementation.operator,
            implementation.name,
            target=target,
            dtype=record.dtype,
            axes=workload.axes,
            config=record.config,
            scalars=workload.scalars,
        )
    except OpforgeError as error:
        return {"why_no_code": str(error).splitlines()[0]}
    return {"kernels": inspection.kernels}


def host_facts(implementation: Implementation, config: Config) -> HostFacts:
    """What the compiled library of a C++ implementation says, in this config."""
    try:
        library = native.library(implementation, config, Cpp().toolchain()).path
    except OpforgeError as error:
        return HostFacts(reason=str(error).splitlines()[0])
    found = host_code(library)
    if isinstance(found, str):
        return HostFacts(reason=found)
    return HostFacts(
        vector_share=found.vector_share,
        divisions=found.divisions,
        on_stack=found.on_stack,
        parallel=found.parallel,
    )


def _counters(
    implementation: Implementation, workload: Workload, record: Record, device: str, cases: CaseCache | None
) -> dict[str, Any]:
    """What a GPU counts, as fields of a Subject."""
    able = backend(implementation.backend)
    reason = unreadable(device) or ("" if isinstance(able.execution_mode(device), Native) else "it does not run here")
    if reason or cases is None:
        return {"why_no_counters": reason or "counters were not asked for"}
    case = Case(
        name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars, layout=workload.layout,
        seed=fresh_seed(),
    )  # fmt: skip
    job = job_for(cases, implementation, record.dtype, (case,), record.config)
    found = read_counters(job, able.environment(device))
    if not isinstance(found, Counters):
        return {"why_no_counters": found}
    return {"counters": {name: value for name, value in asdict(found).items() if isinstance(value, float)}}


def newest(records: Sequence[Record], workload: str) -> Record:
    """Of one bench of one implementation: the record of the workload, else that of its verification."""
    timed = [record for record in records if record.workload == workload]
    return (timed or list(records))[-1]
