"""The rule by which torch.vmap calls an operator: as one larger call where its leading axis is a batch already, else
entry by entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._pytree import tree_map

from opforge.core.definition.operator import Operator
from opforge.core.definition.shapes import full_shape, tokens
from opforge.core.language.errors import UsageError


@dataclasses.dataclass(kw_only=True)
class Batching:
    """`Batching(operator=…, call=…)(info, in_dims, *arguments)`, as torch.library.register_vmap wants it.

    call   the custom operator: tensors in the operator's order, then scalars
    """

    operator: Operator
    call: Callable[..., Any]
    _independent: dict[tuple[Any, ...], bool] = dataclasses.field(default_factory=dict)

    def __call__(self, info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        """The outputs and the places of their batch axis: always the first."""
        count = len(self.operator.inputs)
        tensors, dims, scalars = arguments[:count], in_dims[:count], arguments[count:]
        led = leading_inputs(self.operator)
        for spec, dim in zip(self.operator.inputs, dims, strict=True):
            if dim is None and spec.name in self.operator.overwritten:
                raise UsageError(
                    f"{self.operator.name} overwrites {spec.name}, and torch.vmap gives all entries the same one. Give "
                    f"it a batch too, e.g. {spec.name}.expand(n, ...).clone()."
                )
        if (
            led is not None
            and all(dim is None or leads for dim, leads in zip(dims, led, strict=True))
            and self.independent(scalars)
        ):
            moved = [
                tensor
                if not leads
                else tensor.unsqueeze(0).expand(info.batch_size, *tensor.shape)
                if dim is None
                else tensor.movedim(dim, 0)
                for tensor, dim, leads in zip(tensors, dims, led, strict=True)
            ]
            found = self.call(*moved, *scalars)
        else:
            # of no entries at all one is made up, for the shapes and dtypes of what is then cut off
            picked = [
                [
                    tensor if dim is None else tensor.select(dim, entry)
                    for tensor, dim in zip(tensors, dims, strict=True)
                ]
                for entry in range(info.batch_size)
            ] or [
                [
                    tensor if dim is None else tensor.new_zeros(tensor.movedim(dim, 0).shape[1:])
                    for tensor, dim in zip(tensors, dims, strict=True)
                ]
            ]
            entries = [self.call(*row, *scalars) for row in picked]
            fresh = len(self.operator.fresh)
            parts = [entries] if fresh == 1 else zip(*entries, strict=True) if fresh else ()
            stacked = [torch.stack(part)[: info.batch_size] for part in parts]
            found = stacked[0] if fresh == 1 else tuple(stacked) or None
        return found, tree_map(lambda _: 0, found)

    def independent(self, scalars: Sequence[Any]) -> bool:
        """Whether what lies along the leading axis has nothing to do with each other: a cumulative sum over all of it
        would.
        The reference is asked, once, on a small case in float64."""
        key = tuple(scalars)
        if key not in self._independent:
            # in a thread of its own, where no mode is active and nothing is traced: torch.compile's tensors have no
            # content
            with ThreadPoolExecutor(1) as apart:
                self._independent[key] = apart.submit(self._ask_reference, scalars).result()
        return self._independent[key]

    def _ask_reference(self, scalars: Sequence[Any]) -> bool:
        operator = self.operator
        plain = [case for case in operator.cases if case.distribution == "normal"]
        sizes = [
            (sum(torch.Size(full_shape(spec.shape, case.axes)).numel() for spec in operator.inputs), case)
            for case in plain
        ]
        chosen = min((item for item in sizes if item[0] > 3), key=lambda item: item[0], default=None)
        if chosen is None:
            return False
        led = leading_inputs(operator)
        assert led is not None
        # torch.vmap forbids random numbers while it is at work; these have no pattern either
        shapes = [
            torch.Size((2,) * leads + full_shape(spec.shape, chosen[1].axes))
            for spec, leads in zip(operator.inputs, led, strict=True)
        ]
        values = [
            torch.sin(torch.arange(1, shape.numel() + 1, dtype=torch.float64) ** 2 + place).reshape(shape)
            for place, shape in enumerate(shapes)
        ]
        named = dict(zip((scalar.name for scalar in operator.scalars), scalars, strict=True))
        with torch.no_grad():
            whole = _several(operator.reference(*values, **named))
            parts = [
                _several(
                    operator.reference(
                        *(value[entry] if leads else value for value, leads in zip(values, led, strict=True)), **named
                    )
                )
                for entry in range(2)
            ]
        together = [torch.stack(part) for part in zip(*parts, strict=True)]
        return all(
            one.shape == other.shape and torch.allclose(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
            for one, other in zip(whole, together, strict=True)
        )


def leading_inputs(operator: Operator) -> tuple[bool, ...] | None:
    """Which inputs begin with the variadic axis that all outputs begin with; None where the outputs have no such axis,
    where it
    stands elsewhere too, or where an input holds anything but floating-point numbers."""
    leads = {tokens(spec.shape)[:1] for spec in operator.outputs}
    first = next(iter(leads))
    if len(leads) > 1 or not first or not first[0].startswith("*"):
        return None
    if any(first[0] in tokens(spec.shape)[1:] or spec.dtype != "T" for spec in operator.inputs):
        return None
    found = tuple(tokens(spec.shape)[:1] == first for spec in operator.inputs)
    return found if any(found) else None


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
