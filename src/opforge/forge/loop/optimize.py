"""The loop: accuracy first, then a diagnosis, one strategy, its candidates, and only what is surely faster is kept.

Every round is kept in the store when it is over; a loop that was cut short goes on after its last round.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.backends import Native, backend
from opforge.core.definition.implementation import EAGER, Implementation
from opforge.core.definition.operator import Workload
from opforge.core.evidence.comparison import FASTER, UNSURE, Comparison
from opforge.core.evidence.diagnosis import Diagnosis
from opforge.core.evidence.optimization import END, KEPT, ROLLED_BACK, ROUND, START, STOPPED, OptimizationRound, Tried
from opforge.core.language.errors import OpforgeError, UsageError
from opforge.diagnose.bottleneck import NEAR_ROOF
from opforge.forge.loop.changes import claims_less, classified, diff, refusal
from opforge.forge.loop.engine import Engine, Proposal, Situation, Variant
from opforge.forge.loop.patience import NOTE, Patience
from opforge.forge.loop.replay import Replay
from opforge.forge.loop.trials import Trials
from opforge.machine import environment
from opforge.registry import Registry
from opforge.report.record_text import describe
from opforge.runner import Host
from opforge.store import Store
from opforge.tuning.job import Passed
from opforge.workbench.diagnosing import diagnosis_of

UNSURES = 2
"""Comparisons in a row that could not tell candidate and best: the machine is too busy, or little is left."""

MakeEngine = Callable[[Path], Engine]


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """What is asked of an optimisation.

    rounds      at most; target: times as fast as `baseline` (an implementation; "": the start); inf: none
    limit_s     seconds for all of it; no round is begun after them. None: no limit
    write       whether the best replaces the implementation's file
    named       what the engine was given, by name: rounds go on only under the same
    fresh       begin anew, whatever an interrupted run left
    start       the text to begin with; None: the implementation's file as it is
    patience_s  seconds that it may wait, in all, for other work to leave the processors of a CPU
    """

    rounds: int = 5
    target: float = math.inf
    baseline: str = EAGER
    device: str = "cpu"
    limit_s: float | None = None
    write: bool = True
    fresh: bool = False
    named: Mapping[str, str] | None = None
    start: str | None = None
    patience_s: float = 60.0


def optimize(
    registry: Registry,
    implementation: Implementation,
    workload: Workload,
    dtype: str,
    options: LoopOptions,
    make_engine: MakeEngine,
    host: Host,
    store: Store,
    *,
    say: Callable[[str], None] = lambda words: None,
) -> Iterator[OptimizationRound]:
    """The rounds of an optimisation as they are over, each in the store already: the start, the rounds, the end.

    Of a run that was cut short the rounds that are there are given first. The file of the implementation is replaced at
    the end where something was kept. Raises UsageError where the start is not right or cannot be timed here.
    """
    mode = backend(implementation.backend).execution_mode(options.device)
    if not isinstance(mode, Native):
        raise UsageError(
            f"{implementation.name} cannot be timed on {options.device}: {mode}. Choose an implementation that runs "
            "here, e.g. one in C++ on a CPU."
        )
    with tempfile.TemporaryDirectory(prefix="opforge-optimize-") as scratch:
        trials = Trials(
            registry,
            implementation,
            workload,
            dtype,
            device=options.device,
            host=host,
            folder=Path(scratch, "home"),
            patience=Patience(options.patience_s),
        )
        try:
            loop = _Loop(registry, implementation, options, make_engine(Path(scratch, "engine")), trials, store, say)
            yield from loop.run()
        finally:
            trials.close()


class _Loop:
    """One optimisation under way."""

    def __init__(
        self,
        registry: Registry,
        implementation: Implementation,
        options: LoopOptions,
        engine: Engine,
        trials: Trials,
        store: Store,
        say: Callable[[str], None],
    ) -> None:
        self.registry, self.implementation, self.options = registry, implementation, options
        self.engine, self.trials, self.store, self.say = engine, trials, store, say
        text = implementation.source.read_text(encoding="utf-8")
        self.start_text = text if options.start is None else options.start
        self.text = self.start_text
        self.rounds: list[OptimizationRound] = []
        self.past: list[OptimizationRound] = []
        self.run_id = uuid.uuid4().hex[:12]
        self.environment = environment(options.device, registry.operator(implementation.operator).folder)
        self.best: Passed
        self.start: Passed
        self.baseline: Passed | None = None
        self.family = family_of(implementation)

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        """What a run must have been asked to be gone on with."""
        named = self.options.named or {}
        return tuple(sorted({**named, "target": f"{self.options.target:g}", "baseline": self.options.baseline}.items()))

    def run(self) -> Iterator[OptimizationRound]:
        began = time.monotonic()
        self._resume()
        yield from self.rounds
        self._begin()
        if not self.rounds:
            yield self._keep(self._fact(START, 0, self._diagnosis(), began=began))
        while (reason := self._over(began)) is None:
            outcome = self._round()
            if isinstance(outcome, str):
                reason = outcome
                break
            yield self._keep(outcome)
        yield self._keep(self._ended(reason, began))

    def _ended(self, reason: str, began: float) -> OptimizationRound:
        """The end: the best against the start once more, timed afresh and not on the samples that ranked it; then the
        file is replaced.
        """
        comparison = None
        if self.text != self.start_text:
            met = self.trials.met(self.best, self.start)
            comparison = met.comparison
            if comparison is None or comparison.outcome != FASTER:
                told = met.reason if comparison is None else comparison.outcome
                reason += f"; timed afresh against the start the best is not surely faster ({told}): the file stays"
            elif self.options.write:
                replaced(self.implementation.source, self.text)
                reason += f"; {self.implementation.source.name} was replaced by the best"
        fact = self._fact(END, self.rounds[-1].number, self._diagnosis(), began=began)
        if self.baseline is not None and fact.over_baseline is not None and fact.over_baseline < 1:
            name, times = self.baseline.implementation.name, f"{1 / fact.over_baseline:.2f}"
            reason += f"; {name} is still {times} times as fast: where opforge bench has seen that, calls take {name}"
        over = comparison.speedup if comparison is not None else fact.over_start
        return replace(fact, decision=STOPPED, reason=reason, comparison=comparison, over_start=over)

    def _resume(self) -> None:
        known = self.store.rounds(operator=self.implementation.operator)
        mine: dict[str, list[OptimizationRound]] = {}
        for one in known:
            mine.setdefault(one.run, []).append(one)
        self.past = [one for one in self.store.rounds() if one.run != self.run_id]
        sha256 = hashlib.sha256(self.start_text.encode()).hexdigest()
        for run, rounds in reversed(list(mine.items())):
            first, last = rounds[0], rounds[-1]
            same = (first.implementation, first.workload, first.dtype, first.fingerprint, first.start_sha256) == (
                self.implementation.name,
                self.trials.workload.name,
                self.trials.dtype,
                self.environment.fingerprint,
                sha256,
            )
            open_still = last.stage != END and (first.engine, first.options) == (self.engine.name, self.asked)
            if same and open_still and not self.options.fresh:
                self.say(f"going on after round {last.number} of run {run}")
                self.run_id, self.rounds, self.text = run, list(rounds), last.best
                self.past = [one for one in self.past if one.run != run]
                return

    def _begin(self) -> None:
        """The start, the best until now and the baseline, right and timed. Raises UsageError where they are not."""
        start = self.trials.tried(self.trials.made(self.start_text), None)
        if start.passed is None:
            raise UsageError(
                f"{self.implementation.name} is not right, and accuracy comes first: {describe(start.verdict)}. See: "
                f"opforge verify {self.implementation.operator} --implementation {self.implementation.name}"
            )
        self.start = self.best = start.passed
        if self.text != self.start_text:
            best = self.trials.tried(self.trials.made(self.text), None)
            if best.passed is None:
                raise UsageError(f"The best of the run before is not right now: {describe(best.verdict)}. Add --fresh.")
            self.best = best.passed
        known = self.trials.named(self.options.baseline) if self.options.baseline else None
        if known is not None and known.name != self.implementation.name:
            self.baseline = self.trials.beside(known)
        self._timed()

    def _timed(self) -> None:
        """Times of the best, the start and the baseline, interleaved."""
        sides = [self.best] + [self.start] * (self.start is not self.best) + ([self.baseline] if self.baseline else [])
        self.trials.seconds(sides)

    def _over(self, began: float) -> str | None:
        """Why no further round is begun; None where one is. A replay goes to the end of what it replays."""
        if self.engine.name == Replay.name:
            return None
        done = [one for one in self.rounds if one.stage == ROUND]
        if (ratio := (self.over_baseline if self.baseline else self.over_start) or 0.0) >= self.options.target:
            over = self.baseline.implementation.name if self.baseline is not None else "the start"
            return f"the target is reached: {ratio:.2f} times as fast as {over}, {self.options.target:g} was wanted"
        if len(done) >= self.options.rounds:
            return f"the limit of {self.options.rounds} rounds is reached"
        # where the baseline is faster, something is left however near the roof
        behind = self.over_baseline is not None and self.over_baseline < 1
        share = self._diagnosis().fraction if self.rounds and not behind else None
        if share is not None and share >= NEAR_ROOF:
            return f"{share:.0%} of the roofline bound is reached"
        compared = [one.comparison.outcome for one in done if one.comparison is not None]
        if compared[-UNSURES:] == [UNSURE] * UNSURES:
            return f"{UNSURES} comparisons in a row were UNSURE: measure on a quieter machine, or little is left"
        if self.options.limit_s is not None and time.monotonic() - began > self.options.limit_s:
            return f"the limit of {self.options.limit_s:g} s has passed"
        return None

    def _round(self) -> OptimizationRound | str:
        """The next round; why there is none, where the engine has nothing left."""
        began, number = time.monotonic(), 1 + sum(one.stage == ROUND for one in self.rounds)
        diagnosis = self._diagnosis()
        situation = Situation(
            text=self.text,
            implementation=self.best.implementation,
            diagnosis=diagnosis,
            rounds=self.rounds,
            past=self.past,
            family=self.family,
            described=described(self.registry, self.implementation, self.trials.workload, self.trials.dtype),
            allows=self.trials.allows,
        )
        proposal = self.engine.propose(situation)
        if proposal is None:
            return f"the engine {self.engine.name} has nothing left to try"
        self.say(f"round {number}: {proposal.strategy}: {proposal.hypothesis}")
        tried, passed = self._candidates(proposal, number)
        comparison, decision, reason = self._decided(tried, passed)
        if decision == KEPT:
            self.best, _, self.text = min(passed, key=lambda item: item[1])
        self.trials.drop(lambda item: item in (self.best, self.start, self.baseline))
        if decision == KEPT:
            self._timed()
        fact = self._fact(ROUND, number, diagnosis, began=began)
        self.say(f"round {number}: {decision}: {reason}")
        return replace(
            fact,
            strategy=proposal.strategy,
            hypothesis=proposal.hypothesis,
            expected=proposal.expected,
            tried=tuple(tried),
            comparison=comparison,
            decision=decision,
            reason=reason,
            tokens=sum(one.tokens for one in tried),
        )

    def _candidates(self, proposal: Proposal, number: int) -> tuple[list[Tried], list[tuple[Passed, float, str]]]:
        """Every candidate of a round with what became of it; of those that passed, with their ratios and texts."""
        tried: list[Tried] = []
        passed: list[tuple[Passed, float, str]] = []
        variants = proposal.variants
        try:
            variant = next(variants)
            while True:
                one, found = self._one(variant)
                tried.append(one)
                if found is not None and one.ratio is not None:
                    passed.append((found, one.ratio, variant.text))
                ended = f"{one.ratio:.2f} of the best's time" if found is not None and one.ratio else one.reason
                self.say(f"round {number}: {one.change}: {ended}")
                variant = variants.send(one)
        except StopIteration:
            return tried, passed

    def _one(self, variant: Variant) -> tuple[Tried, Passed | None]:
        suffix = self.implementation.source.suffix
        told = Tried(
            change=variant.change,
            kind=variant.claims,
            diff=diff(self.text, variant.text, self.implementation.source.name) if variant.text else "",
            verdict=None,
            ratio=None,
            reason=variant.broken,
            tokens=variant.tokens,
            source=variant.text,
            repair=variant.repair,
        )
        if variant.broken:
            return told, None
        if said := refusal(variant.text, suffix, self.text):
            return replace(told, reason=f"refused: {said}"), None
        kind = classified(self.text, variant.text, suffix)
        if claims_less(variant.claims, kind):
            return replace(told, reason=f"refused: it says {variant.claims}, and changes {kind}"), None
        if variant.text == self.text:
            return replace(told, kind=kind, reason="it is the best, unchanged"), None
        try:
            made = self.trials.made(variant.text)
        except UsageError as error:
            return replace(told, kind=kind, reason=f"refused: {error}"), None
        outcome = self.trials.tried(made, self.best)
        return (
            replace(told, kind=kind, verdict=outcome.verdict, ratio=outcome.ratio, reason=outcome.reason),
            outcome.passed,
        )

    def _decided(
        self, tried: list[Tried], passed: list[tuple[Passed, float, str]]
    ) -> tuple[Comparison | None, str, str]:
        if not passed:
            why = tried[-1].reason if tried else "there was no candidate"
            return None, ROLLED_BACK, f"no candidate came so far as to be compared; the last: {why}"
        first, ratio, _ = min(passed, key=lambda item: item[1])
        if ratio >= 1:
            return None, ROLLED_BACK, f"none of {len(passed)} seemed faster; the best took {ratio:.2f} of the time"
        met = self.trials.met(first, self.best)
        if met.comparison is None:
            return None, ROLLED_BACK, f"{met.reason}: {describe(met.verdict)}"
        told = met.comparison
        figures = f"{told.speedup:.2f} times as fast ({1 / told.high:.2f} to {1 / told.low:.2f}, {told.pairs} pairs)"
        figures += "".join(f"; {one}" for one in told.notes if one.startswith(NOTE))
        if told.outcome == FASTER:
            return told, KEPT, f"{told.outcome}: {figures}"
        return told, ROLLED_BACK, f"{told.outcome}, not surely faster: {figures}"

    @property
    def over_start(self) -> float | None:
        """How many times as fast as the start the best is, interleaved."""
        if self.start is self.best:
            return 1.0
        return self.start.seconds / self.best.seconds

    @property
    def over_baseline(self) -> float | None:
        """The same over the baseline."""
        return self.baseline.seconds / self.best.seconds if self.baseline is not None else None

    def _diagnosis(self) -> Diagnosis:
        best = self.best
        record = self.trials.job.recorded(best.implementation, best.config, best.proof, best.timing, trial=True)
        found = diagnosis_of(
            self.trials.registry, best.implementation, self.trials.workload, record, device=self.options.device
        )
        # the best is a file of the trials' own: what to try names the implementation that it stands for
        own, shown = best.implementation.name, self.implementation.name
        directions = tuple(
            replace(item, what=item.what.replace(own, shown), command=item.command.replace(own, shown))
            for item in found.directions
        )
        return replace(found, implementation=shown, directions=directions)

    def _fact(self, stage: str, number: int, diagnosis: Diagnosis, *, began: float) -> OptimizationRound:
        return OptimizationRound(
            id=uuid.uuid4().hex,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            run=self.run_id,
            stage=stage,
            number=number,
            operator=self.implementation.operator,
            implementation=self.implementation.name,
            workload=self.trials.workload.name,
            dtype=self.trials.dtype,
            device=diagnosis.device,
            fingerprint=self.environment.fingerprint,
            engine=self.engine.name,
            options=self.asked,
            start_sha256=hashlib.sha256(self.start_text.encode()).hexdigest(),
            family=self.family,
            diagnosis=diagnosis,
            strategy="",
            hypothesis="",
            expected=None,
            tried=(),
            comparison=None,
            decision="",
            reason="",
            best=self.text,
            best_s=self.best.timing.median_s if self.best.timing is not None else None,
            baseline=self.baseline.implementation.name if self.baseline is not None else "",
            over_start=self.over_start,
            over_baseline=self.over_baseline,
            tokens=0,
            spent_s=time.monotonic() - began,
        )

    def _keep(self, fact: OptimizationRound) -> OptimizationRound:
        self.store.keep_round(fact)
        self.rounds.append(fact)
        return fact


def family_of(implementation: Implementation) -> str:
    """What patterns are counted by: the backend and the idea in the file's name."""
    return implementation.name


def described(registry: Registry, implementation: Implementation, workload: Workload, dtype: str) -> str:
    """The operator, the workload and the dtype in words."""
    operator = registry.operator(implementation.operator)
    tensors = [f"input {spec.name}[{spec.shape}]" for spec in operator.inputs]
    tensors += [f"output {spec.name}[{spec.shape}]" for spec in operator.outputs]
    scalars = [f"parameter {scalar.name} = {scalar.default!r}" for scalar in operator.scalars]
    axes = ", ".join(f"{name}={size}" for name, size in workload.axes.items())
    return "\n".join([f"{operator.name}: {operator.about}", *tensors, *scalars, f"{workload.name}: {axes}, {dtype}"])


def replaced(path: Path, text: str) -> None:
    """Write a file beside its place and put it there whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise OpforgeError(
            f"{path} cannot be replaced by the best: {error}. The text is on record: opforge log"
        ) from error
    finally:
        beside.unlink(missing_ok=True)
