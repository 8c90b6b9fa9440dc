"""The function whose promises are checked, with fresh inputs for it, and the ways in which a clause does not hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.call_form import declared
from opforge.core.definition.operator import Case, Operator
from opforge.core.definition.shapes import full_shape
from opforge.runner import allocate, fill, fresh_seed
from opforge.runner.worker.launch import results
from opforge.verify.cases.hidden import elements
from opforge.verify.judging.elements import compare
from opforge.verify.judging.run_case import too_noisy
from opforge.verify.oracle.expectation import Expectation, consult

SHORTEST = 5
"""To what an axis is cut: a row of one has a gradient of zero, whatever is wrong with it."""


class ClauseBroken(Exception):
    """A promise that does not hold; the message says how."""


class Elsewhere(Exception):
    """This machine cannot tell; the message says what it lacks."""


class Open(Exception):
    """The operator does not promise this."""


def share_of_bound(tensor: Any, expectation: Expectation, what: str) -> float:
    """The largest error of a tensor, as a share of its bound. Raises ClauseBroken where an element is beyond it, or all
    of them together are too far off.
    """
    errors = compare(tensor.detach().cpu(), expectation)
    m = errors.metrics
    if bool(errors.wrong.any()):
        raise ClauseBroken(
            f"{what}{list(m.worst_index)} is {m.worst_actual:.6g}, expected {m.worst_expected:.6g} within "
            f"{m.worst_bound:.2g}"
        )
    if not errors.agrees:
        raise ClauseBroken(f"{what}: {too_noisy(errors.noise or 0.0)}")
    return m.worst_ratio


@dataclass(kw_only=True)
class Subject:
    """A function, the operator that it computes, and where and in which dtype it is called.

    gradient_operators   those that the definition names for its gradients; none where the reference is differentiated
    """

    operator: Operator
    function: Callable[..., Any]
    custom: Any
    dtype: str
    device: str
    compiler: str
    gradient_operators: tuple[Operator, ...]

    @property
    def case(self) -> Case:
        """The smallest plain case with at least 16 elements, no axis of one and none without dimensions, or the nearest
        to that.
        """
        plain = [
            case
            for case in self.operator.cases
            if case.dtype in (None, self.dtype)
            and case.distribution == "normal"
            and elements(self.operator, case)
            and all(case.scalars.get(scalar.name, True) for scalar in self.operator.presence)
        ]

        def rank(case: Case) -> tuple[int, bool, int]:
            ones = sum(extent < 2 for spec in self.operator.inputs for extent in full_shape(spec.shape, case.axes))
            return (
                ones + sum(size == () for size in case.axes.values()),
                elements(self.operator, case) < 16,
                elements(self.operator, case),
            )

        ranked = sorted(plain or self.operator.cases, key=rank)
        return dataclasses.replace(ranked[0], layout="contiguous", seed=fresh_seed())

    @property
    def small(self) -> Case:
        """That case with each free axis as short as the constraints let it be, SHORTEST at least: with every parameter
        and every axis there, and few enough elements for one call each.
        """
        operator, case = self.operator, self.case
        scalars = operator.scalar_values(case.scalars)
        for name in operator.free_axes:
            size = case.axes[name]
            for short in range(SHORTEST, max(size, default=0) if isinstance(size, tuple) else size):
                cut = tuple(min(short, one) for one in size) if isinstance(size, tuple) else short
                axes = operator.completed({**case.axes, name: cut}, scalars)
                if operator.violated(axes, self.dtype, scalars) is None:
                    case = dataclasses.replace(case, axes=axes)
                    break
        return case

    @property
    def scalars(self) -> dict[str, Any]:
        return declared(self.operator, self.operator.scalar_values(self.case.scalars))

    def inputs(self, case: Case | None = None) -> list[Any]:
        """Fresh tensors on the device."""
        case = case or self.case
        arena = allocate(self.operator, case, self.dtype)
        try:
            fill(arena, self.operator, case, fresh_seed())
            tensors = arena.tensors("input")
            return [tensors[spec.name].clone().to(self.device) for spec in self.operator.inputs]
        finally:
            arena.close()

    def call(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Every output: what a call returns, and what stands in the inputs that it overwrites."""
        return self.outputs(tensors, self.function(*tensors, **declared(self.operator, self.case.scalars)))

    def outputs(self, tensors: Sequence[Any], returned: Any) -> tuple[Any, ...]:
        """Every output, of what a call on `tensors` has returned."""
        fresh = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
        return tuple(results(self.operator, tensors, fresh).values())

    def require_right(self, tensors: Sequence[Any], outputs: Sequence[Any], what: str) -> None:
        case = self.case
        axes = self.operator.bind(
            {spec.name: tuple(tensor.shape) for spec, tensor in zip(self.operator.inputs, tensors, strict=True)},
            self.operator.scalar_values(case.scalars),
        )
        named = {spec.name: tensor.detach().cpu() for spec, tensor in zip(self.operator.inputs, tensors, strict=True)}
        truth = consult(self.operator, dataclasses.replace(case, axes=axes), self.dtype, named)
        for expectation, output in zip(truth.expectations, outputs, strict=True):
            share_of_bound(output, expectation, f"{what}: {expectation.output}")

    def floating(self, tensors: Sequence[Any]) -> list[Any]:
        if self.operator.overwritten:
            return []  # it has no gradient
        wanted = self.operator.differentiable
        return [
            tensor
            for spec, tensor in zip(self.operator.inputs, tensors, strict=True)
            if tensor.is_floating_point() and (wanted is None or spec.name in wanted)
        ]
