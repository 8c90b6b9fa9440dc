"""What a bench is asked for: the options, what they choose of an operator, and what is told of it while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Operator, Workload
from opforge.core.definition.own_shapes import workload_named
from opforge.core.definition.shape_classes import shape_grid
from opforge.core.evidence.record import Record
from opforge.core.evidence.timing_terms import CALL
from opforge.core.evidence.verdict import Proof
from opforge.core.language.errors import UsageError, unknown
from opforge.registry import Registry
from opforge.timing import Plan
from opforge.trial.verified_before import VerifiedKey
from opforge.verify import BRIEF, Effort
from opforge.workbench.configs import ensure_taken


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to bench.

    device            torch device type: "cpu", "cuda", …
    dtypes            which of the operator's dtypes; empty means all
    backends          which backends; empty means all
    implementations   which implementations by name; empty means all
    configs           settings of tunables; each implementation is tried with each of them that is in its space, with
                      its default where none is. Empty means the default
    workloads         which workloads by name, shapes of one's own among them (core.definition.own_shapes); empty means
                      those whose scale fits the device
    calls             of the workloads and dtypes these pairs of names alone; empty means all
    most              at most the first so many of them; 0 means all
    grid              the operator's shape classes instead (see core.definition.shape_classes): what dispatch fills in
    between
    timed             False stops after verification: on the operator's cases, or on the workloads that are named
    effort            how much verification may cost: verify.DEFAULT, BRIEF or QUICK
    terms             on which terms to time: core.evidence.timing_terms.CALL, OUT or both, each with records of its own
    proven            verifications that are not repeated before timing, by operator, implementation and dtype: see
                      trial.verified_before
    """

    device: str = "cpu"
    dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    configs: tuple[Config, ...] = ()
    workloads: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    most: int = 0
    grid: bool = False
    timed: bool = True
    effort: Effort = BRIEF
    terms: tuple[str, ...] = (CALL,)
    plan: Plan = field(default_factory=Plan)
    proven: Mapping[VerifiedKey, Proof] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, for whoever shows progress: `stage` is "verify", "time" or "record"; `done` of `total`
    steps.
    """

    stage: str
    operator: str
    what: str
    done: int
    total: int
    record: Record | None = None


Listener = Callable[[Event], None]


def workloads_for(operator: Operator, options: BenchOptions) -> tuple[Workload, ...]:
    """The workloads to time: those named, else the shape grid where that is asked for, else those whose scale fits the
    device. Raises UsageError for a shape of one's own that does not fit the operator.
    """
    classes = shape_grid(operator, cpu=options.device == "cpu") if options.grid or options.workloads else ()
    if options.workloads:
        declared = {workload.name: workload for workload in (*operator.workloads, *classes)}
        own = (workload_named(operator, name) for name in options.workloads if name not in declared)
        known = tuple(workload for name, workload in declared.items() if name in options.workloads)
        return (*known, *(workload for workload in own if workload is not None))
    scale = "laptop" if options.device == "cpu" else "gpu"
    fitting = classes if options.grid else tuple(workload for workload in operator.workloads if workload.scale == scale)
    return fitting[: options.most] if options.most else fitting


def chosen(registry: Registry, operator: Operator, options: BenchOptions) -> tuple[Implementation, ...]:
    """The implementations to bench, in the operator's order."""
    for name in options.implementations:
        if "_" in name:
            registry.implementation(operator.name, name)
    return tuple(
        implementation
        for implementation in registry.implementations(operator.name)
        if (not options.backends or implementation.backend in options.backends)
        and (not options.implementations or implementation.name in options.implementations)
    )


def ensure_chosen(registry: Registry, names: Sequence[str], options: BenchOptions) -> None:
    """Raises UsageError when the options leave nothing of the named operators to verify, saying which option it is."""
    left = {name: chosen(registry, registry.operator(name), options) for name in names}
    chosen_names = ", ".join(names)
    known = {item.name for name in names for item in registry.implementations(name)}
    strange = next((name for name in options.implementations if name not in known), None)
    if strange is not None:
        raise unknown("implementation", strange, sorted(known))
    if not any(left.values()):
        raise UsageError(
            f"No implementation of {chosen_names} fits the backends and implementations asked for. See: opforge show "
            f"{names[0]}"
        )
    ensure_taken([item for items in left.values() for item in items], options.configs)
    has = sorted({dtype for name in names if left[name] for dtype in registry.operator(name).dtypes})
    if options.dtypes and not set(options.dtypes) & set(has):
        raise UsageError(
            f"{chosen_names}: nothing is defined for {', '.join(options.dtypes)}. Choose from: {', '.join(has)}."
        )
