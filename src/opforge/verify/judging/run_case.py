"""One case run in a worker, and what its memory says afterwards: contract, bound, laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.backends.imported_symbols import foreign_code
from opforge.core.definition.call_form import formed
from opforge.core.definition.implementation import Config, Implementation, Rejected
from opforge.core.definition.operator import Case, Law, Operator, ScalarValue
from opforge.core.definition.own_words import its_own_words
from opforge.core.evidence.verdict import Broken, Checked, LibraryFallback, Metrics, Mismatch
from opforge.core.language import spans
from opforge.core.language.errors import EnvironmentLacks, NotNow, UsageError
from opforge.core.language.fields import shown
from opforge.runner import Arena, Worker, WorkerLate, fresh_seed, refused
from opforge.runner.wire.messages import Bind, CompilerLate, Failure, Lacks, LaunchBound, Refused, Run
from opforge.runner.worker.dispatch_trace import LAUNCHES
from opforge.verify.cases.case_cache import CaseCache, PreparedCase
from opforge.verify.explain.cause import likely_cause
from opforge.verify.explain.payloads import traces_of
from opforge.verify.explain.window import window
from opforge.verify.judging.elements import compare
from opforge.verify.judging.fallback import library_calls
from opforge.verify.judging.pages import pages_kept
from opforge.verify.judging.threads import give_back, threads_for

OUT_OF_MEMORY = ("out of memory", "memoryerror", "can't allocate memory", "cannot allocate memory", "bad_alloc")
"""What Python, torch, CUDA and C++ say when memory is short."""


@dataclass(frozen=True)
class Started:
    """A launch that is bound and has run once; what it left in the arena is not judged yet."""

    launch: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """A launch that ran, and what was found. `launch` is 0 where there is none that could run again."""

    launch: int
    outcome: Checked | Mismatch | Broken | LibraryFallback
    notes: tuple[str, ...] = ()


@spans.spanned(
    lambda prepared, operator, isolation, **_: ("judge", f"{operator.name} {prepared.case.name} {prepared.dtype}", "")
)
def judge(
    prepared: PreparedCase, operator: Operator, isolation: str, *, measured: bool = True
) -> Checked | Mismatch | Broken:
    """What the arena says after a run: contract, bound, laws, in this order. `measured` False: a Checked comes without
    metrics, which cost
    more than the judgement on a large output, and which nobody keeps of an audit."""
    try:
        with threads_for(prepared.arena.size), pages_kept():
            return _judge(prepared, operator, isolation, measured)
    finally:
        if prepared.truth.waits:
            # what came back for this: the kernel wants it next
            give_back()


def _judge(prepared: PreparedCase, operator: Operator, isolation: str, measured: bool) -> Checked | Mismatch | Broken:
    arena = prepared.seen()
    violations = arena.violations(prepared.pristine)
    if violations:
        reason = "; ".join(violations) + _remedy(violations)
        return Broken(case=prepared.case, dtype=prepared.dtype, reason=reason, isolation=isolation)
    outputs = arena.tensors("output")
    measured_outputs = []
    for place in range(len(prepared.truth.expectations)):
        found = _judge_output(prepared, place, outputs, isolation, measured)
        if isinstance(found, Mismatch):
            return found
        if found is not None:
            measured_outputs.append(found)
    broken = _broken_law(prepared, operator, outputs, isolation)
    return broken or Checked(case=prepared.case, dtype=prepared.dtype, metrics=tuple(measured_outputs))


def _judge_output(
    prepared: PreparedCase, place: int, outputs: Mapping[str, Any], isolation: str, measured: bool
) -> Mismatch | Metrics | None:
    """What one output says. Its expectation is held here alone: of several that wait elsewhere one comes back."""
    expectation = prepared.truth.expectations[place]
    comparison = compare(outputs[expectation.output], expectation)
    if comparison.agrees:
        return comparison.metrics if measured else None
    metrics = comparison.metrics
    actual = outputs[expectation.output].double()
    return Mismatch(
        case=prepared.case,
        dtype=prepared.dtype,
        output=expectation.output,
        index=metrics.worst_index,
        expected=metrics.worst_expected,
        actual=metrics.worst_actual,
        tolerance=metrics.worst_bound,
        wrong=int(comparison.wrong.sum()),
        total=metrics.elements,
        law=None,
        cause=likely_cause(
            actual,
            expectation.expected,
            comparison.wrong,
            prepared.truth.inputs,
            traces=traces_of(prepared.seen(), prepared.pristine, expectation.output),
            whole=expectation.exact is not None,
        )
        if bool(comparison.wrong.any())
        else too_noisy(metrics.noise or 0.0),
        metrics=metrics,
        isolation=isolation,
        window=window(expectation.output, metrics.worst_index, expectation.expected, actual, comparison.wrong),
    )


def too_noisy(noise: float) -> str:
    """The cause where every element is within its bound, and all together are not."""
    return (
        f"no element is beyond its bound, and together they are {noise:.1f} times as far off as float32 "
        "arithmetic explains: factors or sums of fewer digits, "
        "or an approximation of exp that is too coarse"
    )


def _broken_law(prepared: PreparedCase, operator: Operator, outputs: dict[str, Any], isolation: str) -> Mismatch | None:
    import torch

    if not operator.laws or not prepared.truth.finite_inputs:
        return None
    operator = formed(operator, {**prepared.case.axes, **prepared.case.scalars})
    wide = {name: tensor.double() for name, tensor in outputs.items()}
    if any(not tensor.numel() or not bool(torch.isfinite(tensor).all()) for tensor in wide.values()):
        return None
    scalars = operator.scalar_values(prepared.case.scalars)
    for law in operator.laws:
        with its_own_words(operator, f"law {law.name}", prepared.case):
            sentence = law.holds(prepared.truth.inputs, wide, scalars)
        if sentence is not None and not isinstance(sentence, str):
            raise UsageError(
                f"The law {law.name} of {operator.name} answers {shown(sentence)}. A law returns None where it holds, "
                "or one sentence. Correct op.py."
            )
        if sentence is not None:
            _ask_of_reference(law, operator, prepared, scalars)
            first = operator.outputs[0].name
            return Mismatch(
                case=prepared.case,
                dtype=prepared.dtype,
                output=first,
                index=(),
                expected=float("nan"),
                actual=float("nan"),
                tolerance=float("nan"),
                wrong=0,
                total=wide[first].numel(),
                law=law.name,
                cause=sentence,
                metrics=None,
                isolation=isolation,
            )
    return None


def _ask_of_reference(law: Law, operator: Operator, prepared: PreparedCase, scalars: Mapping[str, ScalarValue]) -> None:
    """A law that the reference itself breaks speaks of no kernel: raises UsageError."""
    right = {expectation.output: expectation.expected for expectation in prepared.truth.expectations}
    if any(spec.name not in right for spec in operator.outputs):
        return
    with its_own_words(operator, f"law {law.name}", prepared.case):
        sentence = law.holds(prepared.truth.inputs, right, scalars)
    if sentence is not None:
        raise UsageError(
            f"The law {law.name} of {operator.name} does not hold for its own reference in case {prepared.case.name}: "
            f"{sentence}. Correct op.py."
        )


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """What is run: one implementation, in a worker, on the memory of a case. `case` and `dtype` say what `arena` holds;
    without a `config` the implementation's default is taken.
    """

    bench: CaseCache
    worker: Worker
    implementation: Implementation
    case: Case
    dtype: str
    arena: Arena
    config: Config | None = None


def run_of(
    bench: CaseCache, worker: Worker, implementation: Implementation, prepared: PreparedCase, config: Config | None
) -> CaseRun:
    """The CaseRun on a prepared case."""
    return CaseRun(
        bench=bench,
        worker=worker,
        implementation=implementation,
        case=prepared.case,
        dtype=prepared.dtype,
        arena=prepared.arena,
        config=config,
    )


def start(run: CaseRun) -> Started | Rejected | Broken | LibraryFallback:
    """Bind an arena and run once on what it holds.

    The arena holds nothing but poison while the kernel is bound: what it computes, it computes when it runs.
    Raises WorkerDied, WorkerLate or EnvironmentLacks.
    """
    content = run.arena.bytes().clone()
    if run.bench.host.guards.blind_bind:
        run.arena.poison(fresh_seed())
    answer = bind_blind(run)
    run.arena.bytes().copy_(content)
    return first_run(run, answer)


def bind_blind(run: CaseRun) -> LaunchBound | Failure:
    """The worker's answer to a request to bind an arena, whose content its owner has taken away. Raises WorkerDied or
    WorkerLate.
    """
    bench = run.bench
    question = Bind(
        homes=tuple(str(home.path) for home in bench.registry.homes),
        operator=bench.operator.name,
        implementation=run.implementation.name,
        axes=run.case.axes,
        dtype=run.dtype,
        scalars=bench.operator.scalar_values(run.case.scalars),
        device=bench.device,
        config=run.config,
        arena=run.arena.describe(),
    )
    return run.worker.request(question, [run.arena.fd], bench.bind_limit_s)


def first_run(run: CaseRun, answer: LaunchBound | Failure) -> Started | Rejected | Broken | LibraryFallback:
    """What became of a request to bind, once the arena holds its content again: as `start`. Raises WorkerLate where a
    compiler met its limit.
    """
    bench, implementation, case, dtype, arena = run.bench, run.implementation, run.case, run.dtype, run.arena
    host = bench.host
    if isinstance(answer, Refused):
        scalars = bench.operator.scalar_values(case.scalars)
        known = refused(
            bench.operator, implementation, arena.tensors("input"), arena.tensors("output"), scalars, case.axes, dtype
        )
        if known is not None:
            return known
        # what is not taken is no part of a Pass: that is for the file to say, and not for the process in which the
        # kernel runs
        return Broken(
            case=case,
            dtype=dtype,
            reason=f"its process refuses what its file takes: {answer.reason}",
            isolation=host.isolation,
        )
    if isinstance(answer, Lacks):
        raise (NotNow if answer.later else EnvironmentLacks)(answer.reason)
    if isinstance(answer, CompilerLate):
        run.worker.close()
        raise WorkerLate(answer.limit_s, compiling=True)
    if isinstance(answer, LaunchBound):
        ran = run.worker.request(Run(launch=answer.launch), (), bench.run_limit_s)
        if isinstance(ran, Lacks):
            # known when it runs: what an interpreter has not, say
            raise (NotNow if ran.later else EnvironmentLacks)(ran.reason)
        if not isinstance(ran, Failure):
            evidence = library_calls(ran.operations)
            if evidence:
                reason = (
                    f"it is written for {implementation.backend} and has PyTorch compute: {', '.join(evidence[:4])}"
                )
            elif (
                host.guards.trace
                and implementation.backend == "triton"
                and not ran.operations.get(LAUNCHES)
                and any(tensor.numel() for tensor in arena.tensors("output").values())
            ):
                reason, evidence = "it is written for triton and launched no Triton kernel", ("no launch",)
            elif foreign := (*ran.foreign, *(foreign_code(implementation, run.config) if host.guards.ledger else ())):
                reason, evidence = (
                    f"it is written for {implementation.backend} and something else computes: {'; '.join(foreign[:3])}",
                    tuple(foreign),
                )
            else:
                return Started(answer.launch, ran.notes)
            return LibraryFallback(case=case, dtype=dtype, reason=reason, evidence=evidence, isolation=host.isolation)
        answer = ran
    return Broken(case=case, dtype=dtype, reason=_in_short(answer.reason), isolation=host.isolation)


def _remedy(violations: Sequence[str]) -> str:
    """The next step for the first breach of memory, to stand after what was breached."""
    if "was modified" in violations[0]:
        return ". Write the outputs alone: a kernel is given its inputs first, then its outputs"
    if "written past the end" in violations[0]:
        return ". Leave out what lies beyond the end: a mask on the store, or a bound on the loop"
    return ""


def _in_short(reason: str) -> str:
    """What a kernel raised. Want of memory, which says nothing of its arithmetic, is called by its name."""
    short = any(sign in reason.lower() for sign in OUT_OF_MEMORY)
    return (
        f"out of memory: the kernel asks for more than it may have, or than the device has left ({reason})"
        if short
        else reason
    )


def run_once(
    bench: CaseCache, worker: Worker, implementation: Implementation, prepared: PreparedCase, config: Config | None
) -> Ran | Rejected:
    """Bind and run a prepared case in `worker`, and judge it.

    Raises WorkerDied, WorkerLate or EnvironmentLacks.
    """
    prepared.reset()
    return _judged(bench, prepared, start(run_of(bench, worker, implementation, prepared, config)))


def run_bound(run: CaseRun, prepared: PreparedCase, answer: LaunchBound | Failure) -> Ran | Rejected:
    """As `run_once`, where `bind_blind` has been answered already: several workers may be bound to one arena, and run
    interleaved.
    """
    prepared.reset()
    return _judged(run.bench, prepared, first_run(run, answer))


def _judged(
    bench: CaseCache, prepared: PreparedCase, started: Started | Rejected | Broken | LibraryFallback
) -> Ran | Rejected:
    if isinstance(started, Rejected):
        return started
    if isinstance(started, Broken):
        return Ran(0, started)
    outcome = judge(prepared, bench.operator, bench.host.isolation)
    if isinstance(started, LibraryFallback):
        # a wrong answer is a wrong answer, whoever computed it
        return Ran(0, started if isinstance(outcome, Checked) else outcome)
    return Ran(started.launch, outcome, started.notes)


def run_again(bench: CaseCache, worker: Worker, launch: int, prepared: PreparedCase) -> Broken | None:
    """Run a launch once more on a prepared case that uses the same memory, outputs poisoned before. None: it ran; judge
    it.
    """
    prepared.reset()
    answer = worker.request(Run(launch=launch), (), bench.run_limit_s)
    if not isinstance(answer, Failure):
        return None
    return Broken(case=prepared.case, dtype=prepared.dtype, reason=answer.reason, isolation=bench.host.isolation)
