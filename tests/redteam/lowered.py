"""Takes one guard away, to see whether the cheat that it is there for then passes.

Guards of the runner are fields of `Guards`; those of the judge are replaced here, in the process that judges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from opforge.core.evidence.verdict import Checked
from opforge.runner.walls.guards import Guards
from opforge.trial import audit

_STILL_RIGHT = audit.still_right
RUNNER = tuple(item.name for item in dataclasses.fields(Guards))


def _loose(actual: Any, expectation: Any) -> Any:
    """The rule many harnesses use: rtol = atol = 1e-2, whatever was computed."""
    from opforge.verify.judging.elements import compare

    wide = dataclasses.replace(expectation, bound=1e-2 + 1e-2 * expectation.expected.abs())
    return compare(actual, wide)


def _no_pattern(actual: Any, expectation: Any) -> Any:
    """Elements where either side is NaN or infinite are not looked at."""
    import torch

    from opforge.verify.judging.elements import compare

    skipped = ~(torch.isfinite(actual) & torch.isfinite(expectation.expected))
    expected, bound = expectation.expected.masked_fill(skipped, 0.0), expectation.bound.masked_fill(skipped, 1.0)
    return compare(
        torch.where(skipped, torch.zeros_like(actual), actual),
        dataclasses.replace(expectation, expected=expected, bound=bound),
    )


def _first_half(actual: Any, expectation: Any) -> Any:
    from opforge.verify.judging.elements import compare

    half = max(1, actual.shape[0] // 2)
    return compare(
        actual[:half],
        dataclasses.replace(expectation, expected=expectation.expected[:half], bound=expectation.bound[:half]),
    )


def _answer_in_place(prepared: Any) -> None:
    """Outputs hold the answer before a run: memory that the reference has just used."""
    prepared.arena.bytes().copy_(prepared.pristine)
    for expectation in prepared.truth.expectations:
        prepared.arena.tensor(expectation.output).copy_(expectation.expected)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing is found."""


def _on_nothing(candidate: Any, again: Any, operator: Any, isolation: str, *, kept: bool = False, **told: str) -> Any:
    """Outputs are NaN before each call that is judged."""
    return _STILL_RIGHT(candidate, again, operator, isolation, **told)


def _two_contents(setting: Any) -> list[Any]:
    """Contents that have nothing in common."""
    return [setting.cases.refresh(setting.prepared) for _ in range(2)]


def _judged_afterwards(prepared: Any, operator: Any, isolation: str, **kwargs: Any) -> Any:
    """The reference is asked after the kernel, on the inputs that it left."""
    from opforge.verify import consult, judge

    truth = consult(operator, prepared.case, prepared.dtype, prepared.arena.tensors("input"))
    return judge(
        dataclasses.replace(prepared, truth=truth, pristine=prepared.arena.bytes().clone()), operator, isolation
    )


@contextmanager
def lowered(guard: str) -> Iterator[None]:
    """The judge's own guards are replaced while the context lasts. Those of the runner are fields of `Guards`, and
    `cases_…`
    and `process` take cases, or the process boundary, away: these are the harness's business."""
    from opforge.runner.worker import arena

    real_violations = arena.Arena.violations

    def zeroed(self: Any, seed: int, pattern: int = 0) -> None:
        self.bytes().zero_()
        self.poison_outputs(seed, pattern)

    replaced: dict[str, list[tuple[str, Any]]] = {
        "bound": [("opforge.verify.judging.run_case.compare", _loose)],
        "pattern": [("opforge.verify.judging.run_case.compare", _no_pattern)],
        "full_compare": [("opforge.verify.judging.run_case.compare", _first_half)],
        "poison": [("opforge.verify.cases.case_cache.PreparedCase.reset", _answer_in_place)],
        "pristine": [
            ("opforge.verify.judging.run_case.judge", _judged_afterwards),
            ("opforge.verify.judging.repeats.judge", _judged_afterwards),
        ],
        "inputs": [
            (
                "opforge.runner.worker.arena.Arena.violations",
                lambda self, before: [words for words in real_violations(self, before) if "was modified" not in words],
            )
        ],
        "regions": [
            (
                "opforge.runner.worker.arena.Arena.violations",
                lambda self, before: [words for words in real_violations(self, before) if "was modified" in words],
            )
        ],
        "nan_guards": [("opforge.runner.worker.arena.Arena.poison", zeroed)],
        "fresh_seeds": [("opforge.verify.cases.case_cache.fresh_seed", lambda: 0)],
        "repeats": [("opforge.verify.judging.repeats.Repeats._same", lambda *args, **kwargs: None)],
        "other_content": [("opforge.verify.judging.repeats.Repeats._other_content", lambda *args, **kwargs: None)],
        "audit_runs": [
            (
                "opforge.trial.audit.judge",
                lambda prepared, *args, **kwargs: Checked(case=prepared.case, dtype=prepared.dtype, metrics=()),
            ),
            ("opforge.trial.audit.in_row", _nothing),
            ("opforge.trial.audit.whole", _nothing),
        ],
        "audit_remembered": [
            ("opforge.trial.audit.remembered", _nothing),
            ("opforge.trial.audit.in_row", _nothing),
            ("opforge.trial.audit.whole", _nothing),
        ],
        "audit_in_row": [("opforge.trial.audit.in_row", _nothing), ("opforge.trial.audit.whole", _nothing)],
        "audit_whole": [("opforge.trial.audit.whole", _nothing)],
        "audit_kept": [
            ("opforge.trial.audit.still_right", _on_nothing),
            ("opforge.trial.audit.remembered", _nothing),
            ("opforge.trial.audit.in_row", _nothing),
            ("opforge.trial.audit.whole", _nothing),
        ],
        "audit_twins": [
            ("opforge.workbench.bench.unseen_contents", _two_contents),
            ("opforge.trial.audit.in_row", _nothing),
            ("opforge.trial.audit.whole", _nothing),
            ("opforge.trial.audit.remembered", _nothing),
        ],
        "audit_far": [("opforge.workbench.bench.far_values", _nothing)],
        "watched": [("opforge.trial.setting.watched", lambda prepared: lambda: None)],
        "again": [("opforge.verify.verification.again", lambda *args: ())],
        "declared": [("opforge.verify.verification.declared", lambda *args: ())],
        "places": [
            ("opforge.verify.verification.fenced", lambda *args: ()),
            ("opforge.verify.cases.hidden.PLACES", ("contiguous",) * 3),
            ("opforge.verify.cases.hidden.FENCED", 0),
        ],
        "audit_replayed": [("opforge.trial.audit.replayed", lambda *args, **kwargs: None)],
        "audit_conserved": [("opforge.trial.audit.conserved", lambda *args, **kwargs: None)],
        "audit_undivided": [("opforge.trial.audit.undivided", lambda *args, **kwargs: None)],
        "audit_understated": [
            ("opforge.trial.audit.understated", lambda *args, **kwargs: None),
            ("opforge.trial.audit.outgrown", lambda *args, **kwargs: None),
        ],
        # the same clock is held against a time twice: over the samples' own requests, and over longer ones afterwards
        "parent_clock": [
            ("opforge.timing.measure.understated", _nothing),
            ("opforge.trial.audit.understated", _nothing),
        ],
    }
    assert guard in replaced or guard in RUNNER or guard == "process" or guard.startswith("cases_"), guard
    with ExitStack() as stack:
        for target, value in replaced.get(guard, []):
            stack.enter_context(patch(target, value))
        yield
