"""A pipeline as a case: each stage judged on what the stage before it gave, the whole held against float64, NaN and
infinity asked at each stage.

A stage runs as in any verification: in a worker, on guarded memory, judged by its own bound on the very inputs that it
got. The whole is the same chain in float64, which nothing rounds in between. How far it may be off follows from the
stages' bounds: the chain is run in float64 with each stage's result off by its bound, with random signs, DRAWS times.
An element may be off by SPREAD times the root of the mean of the squares of what came of that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.backends import Missing, backend
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import Implementation, Rejected
from opforge.core.definition.operator import Case
from opforge.core.definition.pipeline import Pipeline, PipelineCase, Stage
from opforge.core.evidence.verdict import Checked, Mismatch
from opforge.registry import Registry
from opforge.runner import Host, WorkerDied, WorkerLate, fresh_seed
from opforge.verify.cases.case_cache import CaseCache, PreparedCase
from opforge.verify.judging.run_case import run_once
from opforge.verify.oracle.expectation import consult

BACKENDS = ("torch", "cpp", "triton", "cuda", "tilelang")
DRAWS, SPREAD = 16, 6.0
"""An honest element's error is some sixth of what bounds allow. The root of 16 squares of normal numbers is below 0.4
of its mean once in 10,000 draws; then 2.4 times the spread are left to it.
"""
SPECIAL = (float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True, kw_only=True)
class PipelineOutcome:
    """What became of one case of a pipeline, with the implementations of one backend.

    special          the stage among whose inputs NaN and infinities were put; "" where there were none
    implementations  of each stage
    worst            the largest error of the whole, in units of what is allowed; None where it did not come to that
    failure          what is wrong, and at which stage; ""
    excused          stages whose baseline is known to be inaccurate, and was: what follows got the right values
    """

    pipeline: str
    case: str
    dtype: str
    backend: str
    special: str
    implementations: tuple[str, ...]
    worst: float | None
    failure: str
    excused: tuple[str, ...] = ()


def verify_pipeline(
    registry: Registry,
    pipeline: Pipeline,
    host: Host,
    device: str,
    dtypes: Sequence[str] = (),
    backends: Sequence[str] = (),
    *,
    quick: bool = False,
) -> Iterator[PipelineOutcome]:
    """Every case in every dtype with every backend that runs here (`backends`: of these alone): plain, and with NaN and
    infinities among the inputs of each stage. `quick`: the first case in the first dtype, the special values at the
    first stage alone. Raises EnvironmentLacks where the machine lacks what a stage needs.
    """
    for name in backends or BACKENDS:
        if isinstance(backend(name).execution_mode(device), Missing):
            continue
        if not any(_files(registry, stage, name) for stage in pipeline.stages):
            continue
        most = 1 if quick else None
        for dtype in dtypes or pipeline.dtypes[:most]:
            for case in pipeline.cases[:most]:
                for special in ("", *(stage.name for stage in pipeline.stages[:most])):
                    chain = Chain(registry, pipeline, host, device, dtype, name)
                    try:
                        yield chain.run(case, special)
                    finally:
                        chain.close()


def _files(registry: Registry, stage: Stage, name: str) -> list[Implementation]:
    operator = registry.operator(stage.operator)
    found = [registry.implementation(stage.operator, stem) for stem in operator.implementations]
    return [item for item in found if item.backend == name]


class Chain:
    """One run of a pipeline in one dtype, with the files of one backend where they take the call, else PyTorch's."""

    def __init__(self, registry: Registry, pipeline: Pipeline, host: Host, device: str, dtype: str, name: str) -> None:
        self.registry, self.pipeline, self.host, self.device = registry, pipeline, host, device
        self.dtype, self.backend = dtype, name
        self.caches: list[CaseCache] = []

    def close(self) -> None:
        """Give all memory back."""
        for cache in self.caches:
            cache.close()

    def run(self, case: PipelineCase, special: str) -> PipelineOutcome:
        """Stage after stage, each on what those before it gave."""
        import torch

        given: dict[str, Any] = {}
        """Values as the kernels made them."""
        exact: list[dict[str, Any]] = [{} for _ in range(1 + DRAWS)]
        """The same in float64: first as nothing rounds them, then with each stage off by its bound."""
        used: list[str] = []
        excused: list[str] = []
        signs = torch.Generator().manual_seed(fresh_seed() % (1 << 62))
        outcome = PipelineOutcome(
            pipeline=self.pipeline.name, case=case.name, dtype=self.dtype, backend=self.backend, special=special,
            implementations=(), worst=None, failure="",
        )  # fmt: skip
        for stage in self.pipeline.stages:
            prepared = self.prepared(stage, case, given, exact, special == stage.name)
            implementation, failure, inaccurate = self.ran(stage, prepared)
            used.append(implementation)
            if failure:
                return dataclasses.replace(
                    outcome, implementations=tuple(used), failure=f"stage {stage.name} ({implementation}): {failure}"
                )
            first = prepared.truth.expectations[0]
            result = prepared.arena.tensor(first.output)
            if inaccurate:
                excused.append(stage.name)
                result.copy_(first.expected)
            for number, values in enumerate(exact):
                found = self.in_float64(stage, prepared, values)
                if number:
                    found = found + first.bound.nan_to_num(0.0) * (
                        torch.randint(0, 2, found.shape, generator=signs) * 2 - 1
                    )
                values[stage.name] = found
            given[stage.name] = result.clone()
        last = self.pipeline.stages[-1].name
        worst, failure = _held(given[last].double(), exact[0][last], [values[last] for values in exact[1:]])
        return dataclasses.replace(
            outcome, implementations=tuple(used), worst=worst, failure=failure, excused=tuple(excused)
        )

    def prepared(
        self, stage: Stage, case: PipelineCase, given: dict[str, Any], exact: list[dict[str, Any]], special: bool
    ) -> PreparedCase:
        """The stage's case, its memory holding what earlier stages gave; tensors that it is the first to name are drawn
        here. With `special`, NaN and infinities at random places of the first input that is a value of the pipeline.
        """
        import torch

        operator = self.registry.operator(stage.operator)
        bench = CaseCache(registry=self.registry, operator=operator, host=self.host, device=self.device)
        self.caches.append(bench)
        prepared = bench.prepare(
            Case(
                name=f"{self.pipeline.name}_{case.name}_{stage.name}",
                axes=stage.sizes(case.axes),
                why=case.why,
                scalars=stage.scalars,
                seed=fresh_seed(),
            ),
            self.dtype,
        )
        arena = prepared.arena
        prepared.reset()
        names = {spec.name: stage.inputs.get(spec.name) for spec in operator.inputs}
        for spec, name in names.items():
            if name in given:
                arena.tensor(spec).copy_(given[name])
        if special:
            # what the stage before it gave, or else the first input that there is
            before = [spec for spec, name in names.items() if name is not None] or [operator.inputs[0].name]
            target, named = arena.tensor(before[0]), names[before[0]] or ""
            places = torch.randperm(target.numel())[: len(SPECIAL)].tolist()
            for place, value in zip(places, SPECIAL, strict=False):
                at = tuple(int(index) for index in torch.unravel_index(torch.tensor(place), target.shape))
                target[at] = value
                for values in exact if named in given else ():
                    values[named] = values[named].clone()
                    values[named][at] = value
            if named in given:
                given[named] = target.clone()
        for spec, name in names.items():
            if name is not None and name not in given:
                given[name] = arena.tensor(spec).clone()
                for values in exact:
                    values[name] = given[name].double()
        truth = consult(operator, prepared.case, self.dtype, arena.tensors("input"))
        return dataclasses.replace(prepared, truth=truth, pristine=arena.bytes().clone())

    def ran(self, stage: Stage, prepared: PreparedCase) -> tuple[str, str, bool]:
        """The implementation that took the call, what is wrong with its answer ("": nothing, or what its file says),
        and whether that was so.
        """
        bench = self.caches[-1]
        pool = bench.workers()
        own = _files(self.registry, stage, self.backend)
        for implementation in (*own, *_files(self.registry, stage, "torch")):
            if self.dtype not in (implementation.dtypes or (self.dtype,)):
                continue
            worker = pool.take(implementation)
            try:
                ran = run_once(bench, worker, implementation, prepared, None)
            except (WorkerDied, WorkerLate) as error:
                return implementation.name, str(error), False
            finally:
                worker.close()
            if isinstance(ran, Rejected):
                continue
            if isinstance(ran.outcome, Checked):
                return implementation.name, "", False
            if implementation.inaccurate and isinstance(ran.outcome, Mismatch):
                return implementation.name, "", True
            reason = getattr(ran.outcome, "reason", "") or getattr(ran.outcome, "cause", "")
            return implementation.name, f"{type(ran.outcome).__name__}: {reason}", False
        return "", f"no implementation takes {stage.operator} so", False

    def in_float64(self, stage: Stage, prepared: PreparedCase, values: Mapping[str, Any]) -> Any:
        """What the stage's reference makes of values in float64; what is not the pipeline's is what the kernel got."""
        operator = self.registry.operator(stage.operator)
        wide = {
            spec.name: values[stage.inputs[spec.name]]
            if spec.name in stage.inputs
            else prepared.truth.inputs[spec.name]
            for spec in operator.inputs
        }
        returned = operator.reference(
            *(wide[spec.name] for spec in operator.inputs), **operator.scalar_values(stage.scalars)
        )
        return returned[0] if isinstance(returned, tuple) else returned


def _held(actual: Any, expected: Any, moved: list[Any]) -> tuple[float | None, str]:
    """The largest error in units of what is allowed, and what is wrong; ""."""
    import torch

    kinds = [(torch.isnan(value), torch.isposinf(value), torch.isneginf(value)) for value in (actual, expected)]
    for word, here, there in zip(("NaN", "infinite", "negative infinite"), *kinds, strict=True):
        if bool((here != there).any()):
            return None, (
                f"the whole: {int((here & ~there).sum())} elements are {word} that are not in float64, and "
                f"{int((there & ~here).sum())} are not that should be"
            )
    finite = torch.isfinite(expected)
    if not bool(finite.any()):
        return 0.0, ""
    off = torch.stack([(value - expected)[finite].nan_to_num(0.0) for value in moved])
    allowed = SPREAD * off.square().mean(dim=0).sqrt() + 2.0 ** DTYPES["float32"].min_exponent
    worst = float(((actual - expected)[finite].abs() / allowed).max())
    if not worst <= 1.0:
        return worst, f"the whole is off by {worst:.3g} times what its stages' bounds allow"
    return worst, ""
