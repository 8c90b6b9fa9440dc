"""The room where candidates of a loop are tried: one folder, one set of prepared cases, one clock over all rounds.

A candidate's text becomes a file beside a copy of the operator, in a folder of its own that workers find. There it goes
the way of every candidate: bound in a process of its own, right on the workload, verified, timed interleaved with the
best. Who wins a round is verified with all cases and meets the best in pairs, on fresh inputs and in fresh processes.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import Accepted, Config, Implementation
from opforge.core.definition.operator import Case, Workload
from opforge.core.evidence.comparison import Comparison
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Pass, Verdict, may_be_timed
from opforge.core.language.errors import NotNow, UsageError
from opforge.forge.loop.patience import AGAIN, Patience, note
from opforge.machine import detect, environment
from opforge.registry import Home, Registry
from opforge.registry.implementation_files import read_implementation
from opforge.runner import Host
from opforge.timing import Plan, Rule
from opforge.trial import Clock, NotReady, Point, Setting, bind, check, ensure_adequate, leave
from opforge.tuning.compile_queue import Compilers, default_jobs
from opforge.tuning.job import Attempt, Job, Passed, attempt, not_tried
from opforge.tuning.outcomes import TuneOptions
from opforge.tuning.room import NoRoom
from opforge.verify import BRIEF, CaseCache
from opforge.workbench.compare import Contender, SidesCompared, meet
from opforge.workbench.sides import Side

ALSO = """

# every candidate of this folder is an implementation
from dataclasses import replace as _replace
from pathlib import Path as _Path

_here = sorted(path.stem for path in _Path(__file__).parent.glob("*__c*.*") if not path.name.endswith(".pyc"))
operator = _replace(operator, implementations=(*operator.implementations, *_here), gradient=None, further_gradients=())
"""
RULE = Rule(looks=(60, 240))
"""As `opforge compare`: two looks, pairs from four pairs of processes and from eight."""


@dataclass(frozen=True, kw_only=True)
class Met:
    """What came of the best candidate of a round against the best until then: a Comparison, or why there is none."""

    comparison: Comparison | None
    verdict: Verdict
    reason: str


class Trials:
    """Where candidates for one implementation are tried, on one workload and dtype.

    Raises UsageError where the operator or the implementation cannot be copied into a folder of its own.
    """

    def __init__(
        self,
        registry: Registry,
        implementation: Implementation,
        workload: Workload,
        dtype: str,
        *,
        device: str,
        host: Host,
        folder: Path,
        budget_s: float = 0.8,
        patience: Patience | None = None,
    ) -> None:
        """patience: what waits for a still machine, and has disturbed times taken again; None: nothing does."""
        name = implementation.operator
        source = registry.operator(name).folder
        assert source is not None
        ensure_adequate(registry.operator(name))
        self.folder = folder / name
        shutil.copytree(source, self.folder, ignore=shutil.ignore_patterns("tuned", "built", "__pycache__"))
        with (self.folder / "op.py").open("a", encoding="utf-8") as definition:
            definition.write(ALSO)
        self.registry = Registry((Home(folder, "optimisation"),))
        self.operator = self.registry.operator(name)
        self.implementation = implementation
        self.workload, self.dtype, self.device = workload, dtype, device
        # on an accelerator other work on the host's processors moves no time of a kernel
        self.patience = patience if patience is not None and device == "cpu" else Patience(None)
        self.cases = CaseCache(registry=self.registry, operator=self.operator, host=host, device=device)
        self.clock = Clock(device=device)
        # a name of its own: a meeting prepares the workload anew, and lets it go afterwards
        self.case = Case(
            name=f"{workload.name} in rounds",
            axes=workload.axes,
            why=workload.source,
            scalars=workload.scalars,
            layout=workload.layout,
        )
        self.compilers = Compilers(default_jobs(device))
        self.plan = Plan(samples=20, budget_s=budget_s, cache="warm" if device == "cpu" else "cold")
        self.job = Job(
            registry=self.registry,
            operator=self.operator,
            options=TuneOptions(device=device, plan=self.plan),
            setting=Setting(
                cases=self.cases,
                pool=self.cases.workers(),
                prepared=self.cases.prepare(self.case, dtype),
                clock=self.clock,
                limit_s=30.0,
            ),
            environment=environment(device, source),
            run=f"optimize-{uuid.uuid4().hex[:8]}",
            workload=workload,
            dtype=dtype,
            add=lambda record: None,
            listener=lambda trial: None,
            stop=lambda: False,
            compilers=self.compilers,
            began=time.monotonic(),
            until=float("inf"),
            careful=True,
        )
        self._held: list[Passed] = []
        self._number = 0

    def made(self, text: str) -> Implementation:
        """The implementation that a text is, as a file of its own. Raises UsageError for nonsense."""
        stem = f"{self.implementation.name}__c{self._number}"
        self._number += 1
        path = self.folder / f"{stem}{self.implementation.source.suffix}"
        path.write_text(text, encoding="utf-8")
        try:
            found = read_implementation(self.operator.name, self.folder, stem)
        except UsageError:
            path.unlink()
            raise
        return found

    def allows(self, implementation: Implementation, config: Config) -> bool:
        """Whether the limits of an implementation allow a config on the workload."""
        scalars = self.operator.scalar_values(self.workload.scalars)
        axes = self.operator.completed(self.workload.axes, scalars)
        bounds = detect(self.device).bounds()
        size = DTYPES[self.dtype].itemsize
        return isinstance(implementation.allows(config, axes, self.dtype, size, scalars, bounds), Accepted)

    def tried(self, implementation: Implementation, best: Passed | None) -> Attempt:
        """What becomes of a candidate: see tuning.job.attempt. Its process lives on where it passed: see `drop`.

        One that seems slower while other work has the processors is tried again, while there is patience.
        """
        for again in range(AGAIN + 1):
            self.patience.wait()
            try:
                outcome = attempt(self.job, implementation, implementation.default, best)
            except NoRoom as error:
                # one candidate less, and no reason to lose the loop
                outcome = not_tried(error)
            if outcome.passed is not None:
                self._held.append(outcome.passed)
            slower = outcome.ratio is not None and outcome.ratio > 1
            share = self.patience.disturbed() if slower else 0.0
            if share:
                said = f"{outcome.reason}; {note(share)}".removeprefix("; ")
                outcome = replace(outcome, reason=said)
            if not share or again == AGAIN or self.patience.left <= 0:
                break
            gone = outcome.passed
            self.drop(lambda item, gone=gone: item is not gone)  # type: ignore[misc]
        return outcome

    def beside(self, baseline: Implementation) -> Passed | None:
        """A baseline to be timed beside the candidates, right or known to be inaccurate; None where it is neither. Its
        process lives on.
        """
        try:
            (ready,) = bind(self.job.setting, [Point(implementation=baseline, config=baseline.default)])
        except NotNow:
            return None
        if isinstance(ready, NotReady):
            return None
        if not may_be_timed(ready.proof, baseline.backend):
            leave(self.job.setting, [ready])
            return None
        self._held.append(Passed(ready=ready, proof=ready.proof))
        return self._held[-1]

    def named(self, name: str) -> Implementation | None:
        """Another implementation of the operator by name; None where there is none."""
        return next((item for item in self.registry.implementations(self.operator.name) if item.name == name), None)

    def seconds(self, passed: list[Passed]) -> list[float | None]:
        """Their times now, interleaved; None for one that could not be timed. Where other work disturbed them to the
        end, each keeps the shorter of this time and its last.
        """
        for again in range(AGAIN + 1):
            self.patience.wait()
            timings = [timing for _, timing in self.job.measure(passed, 2.0)]
            share = self.patience.disturbed()
            if not share or again == AGAIN or self.patience.left <= 0:
                break
        for item, timing in zip(passed, timings, strict=True):
            longer = isinstance(timing, Timing) and item.timing is not None and timing.median_s > item.timing.median_s
            if isinstance(timing, Timing) and not (share and longer):
                item.timing = timing
        return [
            item.timing.median_s if isinstance(timing, Timing) and item.timing is not None else None
            for item, timing in zip(passed, timings, strict=True)
        ]

    def met(self, candidate: Passed, best: Passed) -> Met:
        """The best candidate of a round, verified with all cases, against the best until then, in fresh processes.

        A meeting that other work disturbed is held again, while there is patience; the calmest counts, with a note.
        """
        verdict = check(self.cases, candidate.implementation, self.dtype, BRIEF, candidate.config)
        if not isinstance(verdict, Pass):
            return Met(comparison=None, verdict=verdict, reason="it did not pass all cases")
        contenders = []
        for item, proof, word in ((candidate, verdict, "candidate"), (best, best.proof, "best")):
            name = f"{word} {item.implementation.name}"
            side = Side(text=name, operator=self.operator.name, implementation=item.implementation.name)
            contenders.append(
                Contender(
                    side=side,
                    name=name,
                    cases=self.cases,
                    implementation=item.implementation,
                    config=item.config,
                    clock=self.clock,
                    verdicts={self.dtype: proof},
                )
            )
        plan = replace(self.plan, budget_s=4.0)
        calmest: tuple[float, SidesCompared] | None = None
        for _ in range(AGAIN + 1):
            self.patience.wait()
            outcome = meet(contenders[0], contenders[1], self.workload, self.dtype, RULE, plan)
            share = self.patience.disturbed()
            if calmest is None or share < calmest[0]:
                calmest = share, outcome
            if not share or self.patience.left <= 0 or outcome.comparison is None:
                break
        assert calmest is not None
        share, outcome = calmest
        comparison = outcome.comparison
        if comparison is not None and share:
            comparison = replace(comparison, notes=(*comparison.notes, note(share)))
        return Met(comparison=comparison, verdict=outcome.a or verdict, reason=outcome.reason)

    def drop(self, keep: Callable[[Passed], bool]) -> None:
        """End the processes of those that are not kept."""
        gone = [item for item in self._held if not keep(item)]
        self._held = [item for item in self._held if keep(item)]
        leave(self.job.setting, [item.ready for item in gone])

    def close(self) -> None:
        """End every process, and forget the cases."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.compilers.close)
            stack.callback(self.cases.close)
            stack.callback(self.drop, lambda item: False)
