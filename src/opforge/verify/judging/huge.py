"""Tensors of more than 2^31 elements, where an index of 32 bits runs out: one case, filled, asked and judged in slices.

For operators whose rows have nothing to do with each other (element by element, or row by row): a slice of the rows is
a case of its own, so that the oracle never holds more than one slice in float64. Asked for by name: it takes gigabytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opforge.backends import backend
from opforge.core.definition.call_form import formed
from opforge.core.definition.implementation import Implementation, Rejected
from opforge.core.definition.operator import Case, Operator
from opforge.core.definition.shapes import AxisValue, full_shape, tokens
from opforge.core.evidence.verdict import Broken, Checked, Mismatch, Pass, Statement, Verdict
from opforge.core.language import units
from opforge.runner import Arena, Worker, WorkerDied, WorkerLate, allocate, fill, fresh_seed
from opforge.runner.wire.messages import Failure, Lacks, Refused, Run
from opforge.verify.cases.case_cache import CaseCache, PreparedCase
from opforge.verify.cases.hidden import elements, leading_axis
from opforge.verify.judging.elements import right_elements
from opforge.verify.judging.exception_verdicts import verdict_of
from opforge.verify.judging.run_case import CaseRun, bind_blind, judge
from opforge.verify.oracle.expectation import consult

BEYOND = 1 << 31
SLICE = 1 << 24
PAST = 1027
COLUMNS = (4099, 4096, 1024)
RESERVE = 1.25
STATEMENT = "beyond_2^31"


class NotHere(Exception):
    """There is no such case, or this machine has no room for it; the message says which."""


@dataclass(kw_only=True)
class Huge:
    """One case of an operator that is larger than `beyond` elements, shared by its implementations. `close` gives the
    memory back.
    """

    bench: CaseCache
    dtype: str
    beyond: int = BEYOND
    slice_elements: int = SLICE
    filled: dict[str, tuple[Case, Arena]] = field(default_factory=dict)

    def judged(self, implementation: Implementation, proof: Pass) -> Verdict:
        """The Pass with a statement on the huge case, or the failure there."""
        verdict = self._judged(implementation, proof)
        if not isinstance(verdict, Pass):
            # what was left unjudged may have been changed: the next kernel gets memory that is filled afresh
            self.close()
        return verdict

    def _judged(self, implementation: Implementation, proof: Pass) -> Verdict:
        def stated(holds: bool | None, words: str) -> Pass:
            return dataclasses.replace(
                proof, statements=(*proof.statements, Statement(name=STATEMENT, holds=holds, detail=words))
            )

        case: Case | None = None
        try:
            case, arena = self._memory(huge_case(self.bench.operator, implementation, self.dtype, self.beyond))
            worker = self.bench.host.worker(backend(implementation.backend).environment(self.bench.device))
            try:
                outcome = self._run(worker, implementation, case, arena)
            finally:
                worker.close()
            if isinstance(outcome, Rejected):
                return stated(None, f"not taken: {outcome.reason}")
            failure, worst = (outcome, 0.0) if outcome is not None else self._judge(case, arena)
        except NotHere as reason:
            return stated(None, f"not asked: {reason}")
        except (WorkerDied, WorkerLate) as error:
            return verdict_of(error, case, self.dtype, self.bench.host.isolation)
        return failure or stated(
            True, f"{elements(self.bench.operator, case)} elements, each within {worst:.0%} of its bound"
        )

    def _memory(self, case: Case) -> tuple[Case, Arena]:
        """The case as it was first filled, and its memory."""
        if case.name not in self.filled or self.bench.operator.overwritten:
            self.close()
            operator = self.bench.operator
            scalars = operator.scalar_values(case.scalars)
            wanted = sum(
                math.prod(full_shape(spec.shape, case.axes)) * _itemsize(spec.dtype_for(self.dtype, scalars))
                for spec in (*operator.inputs, *operator.outputs)
            )
            _room(wanted, self.bench.device)
            arena = allocate(self.bench.operator, case, self.dtype)
            if self.bench.device == "cuda":
                arena.pin()
            for first, rows, _, part in self._slices(case):
                for name, tensor in part.tensors("input").items():
                    _rows(self.bench.operator, arena.tensor(name), name, first, rows).copy_(tensor)
            self.filled[case.name] = case, arena
        return self.filled[case.name]

    def _run(
        self, worker: Worker, implementation: Implementation, case: Case, arena: Arena
    ) -> Broken | Rejected | None:
        whole = arena.bytes()
        arena.poison_outputs(fresh_seed())
        before = {guard: whole[place].clone() for guard, place in arena.guards()}
        answer = bind_blind(
            CaseRun(
                bench=self.bench,
                worker=worker,
                implementation=implementation,
                case=case,
                dtype=self.dtype,
                arena=arena,
            )
        )
        if isinstance(answer, Refused | Lacks):
            return Rejected(answer.reason)
        ran = (
            answer
            if isinstance(answer, Failure)
            else worker.request(Run(launch=answer.launch), (), self.bench.run_limit_s)
        )
        if isinstance(ran, Failure):
            return Broken(case=case, dtype=self.dtype, reason=ran.reason, isolation=self.bench.host.isolation)
        for guard, place in arena.guards():
            if bool((whole[place] != before[guard]).any()):
                return Broken(
                    case=case,
                    dtype=self.dtype,
                    reason=f"bytes were written {guard}",
                    isolation=self.bench.host.isolation,
                )
        return None

    def _slices(self, case: Case) -> Iterator[tuple[int, int, Case, Arena]]:
        """The case in slices of rows: the first row, how many, and the slice as a case of its own with its memory,
        inputs filled
        from its seed. Inputs without rows (a bias, a weight) are the same in all of them."""
        import torch

        operator = formed(self.bench.operator, {**case.axes, **case.scalars})
        lead = leading_axis(operator)
        assert lead is not None and case.seed is not None
        total = case.axes[lead]
        assert isinstance(total, tuple)
        most = max(1, self.slice_elements // max(1, elements(operator, case) // total[0]))
        place = torch.device("cuda" if self.bench.device == "cuda" else "cpu")
        shared: dict[str, Any] = {}
        memory: dict[int, Arena] = {}
        for number, first in enumerate(range(0, total[0], most)):
            rows = min(most, total[0] - first)
            part = dataclasses.replace(case, axes={**case.axes, lead: (rows,)}, seed=case.seed + 2 * number)
            assert part.seed is not None
            if rows not in memory:
                arena = allocate(operator, part, self.dtype)
                memory[rows] = arena if place.type == "cpu" else arena.mirror(place, filled=False)
                # the mapping is all that is needed, and nobody else maps it
                arena.close()
            here = memory[rows]
            here.poison(part.seed)
            fill(here, operator, part, part.seed)
            for spec in operator.inputs:
                if tokens(spec.shape)[:1] != (f"*{lead}",):
                    here.tensor(spec.name).copy_(shared.setdefault(spec.name, here.tensor(spec.name).clone()))
            yield first, rows, part, here

    def _judge(self, case: Case, arena: Arena) -> tuple[Mismatch | Broken | None, float]:
        """The first failure, or None, and the largest error as a share of its bound. The first slice is judged in full,
        laws included,
        and so is what is not right at a glance."""
        import torch

        worst = 0.0
        operator = self.bench.operator
        for first, rows, part, here in self._slices(case):
            truth = consult(operator, part, self.dtype, here.tensors("input"))
            # judged where it lies, which for the judge is "here" whatever device that is
            slice_ = PreparedCase(
                case=part,
                dtype=self.dtype,
                arena=here,
                truth=truth,
                pristine=here.bytes().clone(),
                place=torch.device("cpu"),
            )
            for slot in arena.slots:
                here.tensor(slot.name).copy_(_rows(operator, arena.tensor(slot.name), slot.name, first, rows))
            share = _share_of_bound(slice_) if first else None
            if share is not None:
                worst = max(worst, share)
                continue
            found = judge(slice_, operator, self.bench.host.isolation)
            if not isinstance(found, Checked):
                return self._placed(found, case, first), worst
            worst = max(worst, *(metrics.worst_ratio for metrics in found.metrics))
        return None, worst

    def _placed(self, found: Mismatch | Broken, case: Case, first: int) -> Mismatch | Broken:
        """A failure of a slice as one of the whole case: its index counted from the case's own beginning."""
        if isinstance(found, Broken) or not found.index:
            return dataclasses.replace(found, case=case)
        index = (found.index[0] + first, *found.index[1:])
        spec = next(spec for spec in self.bench.operator.outputs if spec.name == found.output)
        shape = full_shape(spec.shape, case.axes)
        place = 0
        for position, extent in zip(index, shape, strict=True):
            place = place * extent + position
        begins = first * math.prod(shape[1:])
        words = f"right for the first {begins} elements, wrong at element {place}"
        cause = (
            f"{words}, past 2^31 = {BEYOND}: an index of 32 bits; {found.cause}"
            if place >= BEYOND
            else f"{words}; {found.cause}"
        )
        window = found.window
        if window is not None and len(window.corner) == len(shape):
            window = dataclasses.replace(window, corner=(window.corner[0] + first, *window.corner[1:]))
        return dataclasses.replace(found, case=case, index=index, cause=cause, total=math.prod(shape), window=window)

    def close(self) -> None:
        """Give the memory back."""
        for _, arena in self.filled.values():
            arena.close()
        self.filled.clear()


def huge_case(operator: Operator, implementation: Implementation, dtype: str, beyond: int = BEYOND) -> Case:
    """A case with more than `beyond` elements in its largest tensor, in rows of an odd width where the operator and the
    implementation allow it.

    Raises NotHere where rows are not independent, or where nothing of that size is taken.
    """
    lead = leading_axis(operator)
    if lead is None:
        raise NotHere("the operator's outputs have no leading axis of independent rows")
    plain = [
        case
        for case in operator.cases
        if case.distribution == "normal"
        and case.layout == "contiguous"
        and case.dtype in (None, dtype)
        and elements(operator, case)
    ]
    if not plain:
        raise NotHere("the operator has no plain case to take the other axes from")
    base = max(plain, key=lambda case: elements(operator, case))
    scalars = operator.scalar_values(base.scalars)
    others = [name for name in operator.axes if name != lead]
    reason = "no width satisfies the operator's constraints"
    for columns in (*COLUMNS, 0) if others else (0,):
        axes: dict[str, AxisValue] = {
            **base.axes,
            lead: (1,),
            **({others[-1]: columns} if columns and not isinstance(base.axes[others[-1]], tuple) else {}),
        }
        width = elements(operator, Case(name="", axes=axes, why=""))
        axes[lead] = (beyond // width + (PAST if width == 1 else 3),)
        axes = operator.completed(axes, scalars)
        if operator.violated(axes, dtype, scalars) is not None:
            continue
        answer = implementation.accepts(axes, dtype, scalars)
        if isinstance(answer, Rejected):
            reason = answer.reason
            continue
        name = f"beyond_{beyond}" if beyond != BEYOND else "beyond_2^31"
        return Case(
            name=f"{name}_{columns or 'flat'}",
            axes=axes,
            why="an index of 32 bits runs out",
            dtype=None,
            scalars=base.scalars,
            seed=fresh_seed() & ~1,
        )
    raise NotHere(reason)


def _rows(operator: Operator, tensor: Any, name: str, first: int, count: int) -> Any:
    """The rows of a tensor of the huge case that belong to a slice; all of it where it has no rows."""
    lead = leading_axis(operator)
    spec = next(spec for spec in (*operator.inputs, *operator.outputs) if spec.name == name)
    if lead is None or tokens(spec.shape)[:1] != (f"*{lead}",):
        return tensor
    return tensor[first : first + count]


def _share_of_bound(prepared: PreparedCase) -> float | None:
    """The largest error of a slice as a share of its bound; None when anything about it is not right."""
    import torch

    if prepared.arena.violations(prepared.pristine):
        return None
    worst = 0.0
    for expectation in prepared.truth.expectations:
        actual = prepared.arena.tensor(expectation.output)
        if not bool(right_elements(actual, expectation).all()):
            return None
        share = (actual.to(torch.float64) - expectation.expected).abs() / expectation.bound
        worst = max(worst, float(share.nan_to_num(0.0, posinf=0.0).max()))
    return worst


def _itemsize(dtype: str) -> int:
    from opforge.core.definition.dtypes import DTYPES

    return DTYPES[dtype].itemsize


def _room(wanted: int, device: str) -> None:
    """Raises NotHere unless host and device have room for `wanted` bytes, and the device for a result that the kernel
    allocates.
    """
    from opforge.machine import host_hardware

    here = int(RESERVE * wanted) + (2 << 30 if wanted > 1 << 30 else 0)
    free = host_hardware.available_bytes()
    if free < here:
        raise NotHere(f"it takes {units.size(here)} of host memory, and {units.size(free)} are free")
    if device == "cuda":
        import torch

        left, _ = torch.cuda.mem_get_info()
        if left < 2 * wanted:
            raise NotHere(f"it takes {units.size(2 * wanted)} of device memory, and {units.size(left)} are free")
