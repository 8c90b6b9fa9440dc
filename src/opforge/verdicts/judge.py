"""One case run in a worker, and what its memory says afterwards: contract, bound, laws."""

from __future__ import annotations

from typing import Any

from opforge.core.errors import EnvironmentLacks, NotNow, UsageError
from opforge.core.implementation import Config, Implementation
from opforge.core.operator import Case, Operator
from opforge.core.verdict import Broken, Checked, Mismatch, Policy
from opforge.runner import Arena, Worker, bind_message, refused
from opforge.runner.witness import LAUNCHES
from opforge.verdicts.cause import likely_cause
from opforge.verdicts.compare import compare
from opforge.verdicts.oracle import its_own_words
from opforge.verdicts.policy import library_calls
from opforge.verdicts.prepared import Bench, Prepared
from opforge.verdicts.threads import threads_for
from opforge.verdicts.window import window


def judge(prepared: Prepared, operator: Operator, isolation: str) -> Checked | Mismatch | Broken:
    """What the arena says after a run: contract, bound, laws, in this order."""
    with threads_for(prepared.arena.size):
        return _judge(prepared, operator, isolation)


def _judge(prepared: Prepared, operator: Operator, isolation: str) -> Checked | Mismatch | Broken:
    arena = prepared.seen()
    violations = arena.violations(prepared.guarded)
    if violations:
        return Broken(case=prepared.case, dtype=prepared.dtype, reason="; ".join(violations), isolation=isolation)
    outputs = arena.tensors("output")
    found = []
    for expectation in prepared.truth.expectations:
        comparison = compare(outputs[expectation.output], expectation)
        if not comparison.agrees:
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
                cause=likely_cause(actual, expectation.expected, comparison.wrong, prepared.truth.inputs),
                metrics=metrics,
                isolation=isolation,
                window=window(expectation.output, metrics.worst_index, expectation.expected, actual, comparison.wrong),
            )
        found.append(comparison.metrics)
    broken = _broken_law(prepared, operator, outputs, isolation)
    return broken or Checked(case=prepared.case, dtype=prepared.dtype, metrics=tuple(found))


def _broken_law(prepared: Prepared, operator: Operator, outputs: dict[str, Any], isolation: str) -> Mismatch | None:
    import torch

    wide = {name: tensor.double() for name, tensor in outputs.items()}
    if any(not tensor.numel() or not bool(torch.isfinite(tensor).all()) for tensor in (*prepared.truth.inputs.values(), *wide.values())):
        return None
    scalars = operator.scalar_values(prepared.case.scalars)
    for law in operator.laws:
        with its_own_words(operator, f"law {law.name}"):
            words = law.holds(prepared.truth.inputs, wide, scalars)
        if words is not None and not isinstance(words, str):
            raise UsageError(f"The law {law.name} of {operator.name} answers {words!r:.80}. A law returns None where it holds, or one sentence. Correct op.py.")
        if words is not None:
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
                cause=words,
                metrics=None,
                isolation=isolation,
            )
    return None


def start(bench: Bench, worker: Worker, implementation: Implementation, case: Case, dtype: str, arena: Arena, config: Config | None) -> int | str | Broken | Policy:
    """Bind an arena and run once on what it holds: the launch's number, the reason why it is not taken, or how it broke.

    The arena holds nothing but NaN while the kernel is bound: what it computes, it computes when it runs.
    Raises WorkerDied, WorkerLate or EnvironmentLacks.
    """
    content = arena.bytes().clone()
    if bench.host.guards.blind_bind:
        arena.poison()
    answer = bind_blind(bench, worker, implementation, case, dtype, arena, config)
    arena.bytes().copy_(content)
    return first_run(bench, worker, implementation, case, dtype, arena, answer)


def bind_blind(bench: Bench, worker: Worker, implementation: Implementation, case: Case, dtype: str, arena: Arena, config: Config | None) -> dict[str, Any]:
    """The worker's answer to a request to bind an arena, whose content its owner has taken away. Raises WorkerDied or WorkerLate."""
    operator = bench.operator
    homes = [home.path for home in bench.registry.homes]
    message = bind_message(homes, operator.name, implementation.name, case.axes, dtype, operator.scalar_values(case.scalars), bench.device, config)
    message["arena"] = arena.describe()
    return worker.request(message, [arena.fd], bench.bind_limit_s)


def first_run(bench: Bench, worker: Worker, implementation: Implementation, case: Case, dtype: str, arena: Arena, answer: dict[str, Any]) -> int | str | Broken | Policy:
    """What became of a request to bind, once the arena holds its content again: as `start`."""
    host = bench.host
    if answer["status"] == "rejected":
        scalars = bench.operator.scalar_values(case.scalars)
        known = refused(bench.operator, implementation, arena.tensors("input"), arena.tensors("output"), scalars, case.axes, dtype)
        if known is not None:
            return known.reason
        # what is not taken is no part of a Pass: that is for the file to say, and not for the process in which the kernel runs
        return Broken(case=case, dtype=dtype, reason=f"its process refuses what its file takes: {answer['reason']}", isolation=host.isolation)
    if answer["status"] == "lacks":
        raise (NotNow if answer.get("later") else EnvironmentLacks)(answer["reason"])
    if answer["status"] == "bound":
        launch = int(answer["launch"])
        answer = worker.request({"do": "run", "launch": launch}, (), bench.run_limit_s)
        if answer["status"] == "ok":
            operations = answer.get("operations", {})
            evidence = library_calls(operations)
            if evidence:
                reason = f"it is written for {implementation.backend} and has PyTorch compute: {', '.join(evidence[:4])}"
            elif host.guards.trace and implementation.backend == "triton" and not operations.get(LAUNCHES) and any(tensor.numel() for tensor in arena.tensors("output").values()):
                reason, evidence = "it is written for triton and launched no Triton kernel", ("no launch",)
            else:
                return launch
            return Policy(case=case, dtype=dtype, reason=reason, evidence=evidence, isolation=host.isolation)
    return Broken(case=case, dtype=dtype, reason=str(answer.get("reason", answer)), isolation=host.isolation)


def run_once(bench: Bench, worker: Worker, implementation: Implementation, prepared: Prepared, config: Config | None) -> tuple[int, Checked | Mismatch | Broken | Policy] | str:
    """Bind and run a prepared case in `worker`: the launch's number and what was found, or the reason why it is not taken.

    Raises WorkerDied, WorkerLate or EnvironmentLacks.
    """
    prepared.reset()
    return _judged(bench, prepared, start(bench, worker, implementation, prepared.case, prepared.dtype, prepared.arena, config))


def run_bound(bench: Bench, worker: Worker, implementation: Implementation, prepared: Prepared, answer: dict[str, Any]) -> tuple[int, Checked | Mismatch | Broken | Policy] | str:
    """As `run_once`, where `bind_blind` has been answered already: several workers may be bound to one arena, and run in turns."""
    prepared.reset()
    return _judged(bench, prepared, first_run(bench, worker, implementation, prepared.case, prepared.dtype, prepared.arena, answer))


def _judged(bench: Bench, prepared: Prepared, started: int | str | Broken | Policy) -> tuple[int, Checked | Mismatch | Broken | Policy] | str:
    if isinstance(started, str):
        return started
    if isinstance(started, Broken):
        return 0, started
    found = judge(prepared, bench.operator, bench.host.isolation)
    if isinstance(started, Policy):
        # a wrong answer is a wrong answer, whoever computed it
        return 0, started if isinstance(found, Checked) else found
    return started, found


def run_again(bench: Bench, worker: Worker, launch: int, prepared: Prepared) -> Broken | None:
    """Run a launch once more on a prepared case that uses the same memory, outputs poisoned before. None: it ran; judge it."""
    prepared.reset()
    answer = worker.request({"do": "run", "launch": launch}, (), bench.run_limit_s)
    if answer["status"] == "ok":
        return None
    return Broken(case=prepared.case, dtype=prepared.dtype, reason=str(answer.get("reason", answer)), isolation=bench.host.isolation)
