"""What `opforge qualify` does: evidence for dispatch on a device that the package brings none for, by the bench, most
used operators first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opforge.backends import Native, backend
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import COMPARED_WITH
from opforge.core.definition.operator import Operator, Workload
from opforge.core.definition.own_shapes import workload_named
from opforge.core.definition.shape_classes import shape_grid
from opforge.machine import detect
from opforge.machine.versions import versions
from opforge.registry import Registry
from opforge.store import Installation, Store
from opforge.timing import Plan
from opforge.verify import QUICK
from opforge.workbench.bench import BenchOptions

TIMED_BY = Plan(samples=10, budget_s=0.05)
"""Implementations of an operator differ by a quarter where a wrong choice matters; ten samples tell that, and their
intervals say when not.
"""

NO_RIVAL_OF_CPP = ("tilelang",)
"""Backends that are not asked on a CPU where C++ is: TileLang's C target has one thread, and its compiler takes 7 s for
each kernel. It was the fastest in 2 rows of docs/results-cpu.md, one of them matmul with tf32's rounding.
"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the bench: an operator in one dtype, on the shapes and with the implementations that nothing is
    believed of yet.
    """

    operator: str
    options: BenchOptions


def main_dtype(device: str) -> str:
    """The dtype that calls on a device have most often: bfloat16, and on a CPU float32. Times in it tell of others of
    its width too.
    """
    return "float32" if device == "cpu" else "bfloat16"


def steps(
    registry: Registry,
    names: Sequence[str],
    dtypes: Collection[str],
    device: str,
    store: Store,
    own: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Step]:
    """What is left to do, most used operators first. Nothing for what is believed: run again after an interruption, it
    goes on.

    own   shapes of one's own for each operator, instead of those that are timed otherwise
    """
    for operator in sorted(map(registry.operator, names), key=lambda operator: (not operator.used, operator.name)):
        for dtype in operator.dtypes:
            if dtype in (dtypes or (main_dtype(device),)):
                wanted = shapes(operator, dtype, device) if own is None else _own(operator, dtype, own[operator.name])
                step = _step(registry, operator, dtype, device, store, wanted)
                if step is not None:
                    yield step


def shapes(operator: Operator, dtype: str, device: str) -> tuple[Workload, ...]:
    """The shapes that are timed: the first workload that models run, and the shape classes."""
    scale = "laptop" if device == "cpu" else "gpu"
    named = [workload for workload in operator.workloads if workload.scale == scale][:1]
    return tuple(
        workload for workload in (*named, *shape_grid(operator, cpu=device == "cpu")) if operator.takes(workload, dtype)
    )


def _own(operator: Operator, dtype: str, names: Sequence[str]) -> tuple[Workload, ...]:
    """Shapes of one's own that an operator takes in a dtype."""
    found = (workload_named(operator, name) for name in names)
    return tuple(workload for workload in found if workload is not None and operator.takes(workload, dtype))


def _step(
    registry: Registry, operator: Operator, dtype: str, device: str, store: Store, wanted: Sequence[Workload]
) -> Step | None:
    items = [
        item
        for item in registry.implementations(operator.name)
        if item.backend not in COMPARED_WITH and isinstance(backend(item.backend).execution_mode(device), Native)
    ]
    if device == "cpu" and any(item.backend == "cpp" for item in items):
        items = [item for item in items if item.backend not in NO_RIVAL_OF_CPP]
    if not any(item.backend != "torch" for item in items):
        return None
    sources = {item.name: source_sha256(item.source) for item in items}
    beliefs = store.beliefs(
        operator.name, Installation(device=detect(device).name, sources=sources, versions=versions())
    )
    told = {item.workload for item in beliefs.timed() if item.dtype == dtype}
    left = tuple(workload for workload in wanted if workload.name not in told)
    if not left:
        return None
    return Step(
        operator=operator.name,
        options=BenchOptions(
            device=device,
            dtypes=(dtype,),
            implementations=tuple(item.name for item in items),
            workloads=tuple(workload.name for workload in left),
            effort=QUICK,
            plan=Plan(
                samples=TIMED_BY.samples, budget_s=TIMED_BY.budget_s, cache="warm" if device == "cpu" else "cold"
            ),
        ),
    )
