"""Operators as torch.library knows them: `opforge::NAME`, with schema, shapes without contents (fake), gradients and a
rule for torch.vmap.

Only the definition is needed for it. Which kernel a call takes is asked of a Function when the first call comes. So a
program of torch.export is loaded, and `torch.ops.opforge.NAME` is there, before any kernel or record is looked at.
"""

from __future__ import annotations

import string
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opforge.core.definition.call_form import arguments as spread, declared, formed, taken
from opforge.core.definition.operator import Operator, Scalar, ScalarValue
from opforge.core.definition.shapes import full_shape
from opforge.core.language.errors import OpforgeError
from opforge.dispatch.batching import Batching
from opforge.dispatch.traced_gradient import DEFINITIONS

NAMESPACE = "opforge"
_TYPES = {bool: "bool", int: "SymInt", float: "float", str: "str"}
"""Whole numbers may be symbols: a seed that is new at every step compiles a graph once, not until torch.compile gives
up."""
_LOCK = threading.RLock()
_registered: dict[str, Registered] = {}


def schema_of(operator: Operator) -> str:
    """The operator's schema in PyTorch's notation, without its name: `(Tensor x, Tensor weight, float eps=1e-06) ->
    Tensor`. What is overwritten is marked: `(Tensor(a!) x) -> ()`; what is optional or a list too: `Tensor? bias=None`,
    `Tensor[] xs`.
    """
    marks = dict(zip(operator.overwritten, string.ascii_lowercase, strict=False))
    arguments = [
        f"Tensor({marks[spec.name]}!){'[]' if spec.many else ''} {spec.name}"
        if spec.name in marks
        else f"Tensor[] {spec.name}"
        if spec.many
        else f"Tensor? {spec.name}{'=None' if all(later.optional for later in operator.inputs[place:]) else ''}"
        if spec.optional
        else f"Tensor {spec.name}"
        for place, spec in enumerate(operator.inputs)
    ]
    arguments += [f"{_TYPES[type(scalar.default)]} {scalar.name}={_literal(scalar)}" for scalar in operator.scalars]
    results = ", ".join("Tensor" for _ in operator.fresh)
    return f"({', '.join(arguments)}) -> {results if len(operator.fresh) == 1 else f'({results})'}"


def _literal(scalar: Scalar) -> str:
    return f'"{scalar.default}"' if isinstance(scalar.default, str) else repr(scalar.default)


@dataclass
class Registered:
    """One custom operator.

    operator   its definition
    function   gives the dispatch.Function that computes it; asked when a call comes
    custom     what torch.library.custom_op returned
    """

    operator: Operator
    function: Callable[[], Any]
    custom: Any = None

    def split(self, arguments: Sequence[Any]) -> tuple[Sequence[Any], dict[str, ScalarValue]]:
        """The tensors that are given, and every parameter by name, with those that say what is not given: PyTorch
        leaves trailing ones away that have their default.
        """
        count = len(self.operator.inputs)
        arguments = [*arguments, *(None for _ in range(count - len(arguments)))]
        given = dict(zip((scalar.name for scalar in self.operator.scalars), arguments[count:], strict=False))
        scalars = {scalar.name: given.get(scalar.name, scalar.default) for scalar in self.operator.scalars}
        tensors, presence = taken(self.operator, arguments[:count])
        return tensors, {**scalars, **presence}

    def real(self, *arguments: Any) -> Any:
        """The result, by the chosen implementation, as `fake` says that it lies: PyTorch's own may lie otherwise."""
        tensors, scalars = self.split(arguments)
        made = self.function().compute(tensors, scalars)
        if made is None:
            return None
        return tuple(item.contiguous() for item in made) if isinstance(made, tuple) else made.contiguous()

    def fake(self, *arguments: Any) -> Any:
        """Outputs of the right shapes and dtypes, without contents."""
        tensors, scalars = self.split(arguments)
        operator = formed(self.operator, scalars)
        shapes = {spec.name: tuple(tensor.shape) for spec, tensor in zip(operator.inputs, tensors, strict=True)}
        axes = operator.bind(shapes, scalars)
        kinds = [
            tensors[0].dtype if spec.dtype == "T" else getattr(torch, spec.dtype_for("", scalars))
            for spec in operator.fresh
        ]
        outputs = [
            tensors[0].new_empty(full_shape(spec.shape, axes), dtype=kind)
            for spec, kind in zip(operator.fresh, kinds, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep for `backward` what it asks for."""
        from opforge.dispatch.gradients import remember

        tensors, scalars = self.split(inputs)
        ctx.opforge_rest = max(0, len(inputs) - len(self.operator.inputs))
        # what was given, without its memory
        ctx.opforge_given = [
            None if value is None else [True] * len(value) if isinstance(value, list | tuple) else True
            for value in inputs[: len(self.operator.inputs)]
        ]
        ctx.opforge_form = formed(self.operator, scalars)
        remember(ctx, self.function().backward_of(scalars), declared(self.operator, scalars), tensors, output)

    def backward(self, ctx: Any, *incoming: Any) -> Any:
        """One gradient for each tensor, None for each parameter."""
        from opforge.dispatch.gradients import come_back

        needs = _one_by_one(ctx.opforge_given, ctx.needs_input_grad)
        found = come_back(ctx, incoming, needs)
        return *spread(ctx.opforge_form, found), *(None for _ in range(ctx.opforge_rest))

    def batched(self, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        """The rule of torch.vmap."""
        given = arguments[: len(self.operator.inputs)]
        tensors, scalars = self.split(arguments)
        # what an entry has, by which calls of its form are known
        entries = [
            [_Entry(*pair) for pair in zip(value, dim, strict=True)] if isinstance(value, list | tuple) else value
            for value, dim in zip(given, in_dims, strict=False)
        ]
        _, form = taken(self.operator, [*entries, *(None for _ in self.operator.inputs[len(entries) :])])
        rule = self._batching_of({**scalars, **form})
        return rule(info, _one_by_one(given, in_dims), *tensors, *declared(self.operator, scalars).values())

    def _batching_of(self, scalars: Mapping[str, ScalarValue]) -> Batching:
        """The rule for calls of this form."""
        key = (
            *(scalars.get(scalar.name, True) for scalar in self.operator.presence),
            *(scalars[name] for name in self.operator.list_axes),
        )
        if key not in self._batching:
            form = formed(self.operator, scalars)
            count = len(form.inputs)
            self._batching[key] = Batching(
                operator=form,
                call=lambda *given: self.custom(*spread(form, given[:count]), *given[count:]),
            )
        return self._batching[key]

    def serve(self, operator: Operator, function: Callable[[], Any]) -> None:
        """From here on it is `function` that computes it."""
        self.operator, self.function = operator, function
        DEFINITIONS[operator.name] = operator
        self._batching: dict[tuple[Any, ...], Batching] = {}


class _Entry:
    """The shape that a batched tensor has in one entry."""

    def __init__(self, tensor: torch.Tensor, dim: int | None) -> None:
        self.shape = [size for place, size in enumerate(tensor.shape) if place != dim]


def _one_by_one(given: Sequence[Any], said: Sequence[Any]) -> list[Any]:
    """What is said of each argument, said of each tensor that is given."""
    return [
        each
        for value, words in zip(given, said, strict=False)
        if value is not None
        for each in (words if isinstance(value, list | tuple) else (words,))
    ]


def register(operator: Operator, function: Callable[[], Any]) -> Registered:
    """The custom operator `opforge::NAME`, computed by what `function` gives.

    One of that name and schema that is there already is kept, with this definition and function from here on:
    compiled and exported programs hold it. Of another schema it is made anew.
    """
    with _LOCK:
        known = _registered.get(operator.name)
        schema = schema_of(operator)
        if known is None or schema != schema_of(known.operator):
            known = Registered(operator, function)
            # entry points as functions of their own: PyTorch keeps attributes on them, which methods refuse
            made = known
            custom = torch.library.custom_op(
                f"{NAMESPACE}::{operator.name}",
                lambda *given: made.real(*given),
                mutates_args=tuple(operator.overwritten),
                schema=schema,
            )
            custom.register_fake(lambda *given: made.fake(*given))
            if not operator.overwritten:
                custom.register_autograd(
                    lambda ctx, *incoming: made.backward(ctx, *incoming),
                    setup_context=lambda ctx, inputs, output: made.setup(ctx, inputs, output),
                )
            custom.register_vmap(lambda info, in_dims, *given: made.batched(info, in_dims, *given))
            known.custom = custom
            _registered[operator.name] = known
        known.serve(operator, function)
    return known


def register_all(operators: Iterable[Callable[[], Operator]], function: Callable[[str], Any]) -> None:
    """Every operator that isn't registered yet. One whose definition cannot be loaded is left out: whoever asks for it
    by name is told what is wrong with it.

    function   gives the Function of a name
    """
    with _LOCK:
        for load in operators:
            try:
                operator = load()
            except OpforgeError:
                continue
            if operator.name not in _registered:
                register(operator, lambda name=operator.name: function(name))  # type: ignore[misc]
