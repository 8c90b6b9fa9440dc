"""How an operator is called, in Python's own terms: a signature for `inspect` and editors, a text for `help`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import torch

from opforge.core.definition.operator import Operator, Scalar, TensorSpec

WIDTH = 100


def signature_of(operator: Operator) -> inspect.Signature:
    """Tensors by their place (optional ones and lists by name too), parameters by name, with defaults and kinds."""
    place = inspect.Parameter.POSITIONAL_ONLY if operator.one_form else inspect.Parameter.POSITIONAL_OR_KEYWORD
    # after the first that may be left away, all may: Python's grammar wants it so
    optional = [all(later.optional for later in operator.inputs[number:]) for number, _ in enumerate(operator.inputs)]
    tensors = [
        inspect.Parameter(
            spec.name,
            place,
            default=None if may_go else inspect.Parameter.empty,
            annotation=_kind(spec),
        )
        for spec, may_go in zip(operator.inputs, optional, strict=True)
    ]
    scalars = [
        inspect.Parameter(
            scalar.name, inspect.Parameter.KEYWORD_ONLY, default=scalar.default, annotation=_choices(scalar)
        )
        for scalar in operator.scalars
    ]
    return inspect.Signature([*tensors, *scalars], return_annotation=_returned(operator))


def _kind(spec: TensorSpec) -> Any:
    if spec.many is not None:
        return Sequence[torch.Tensor]
    return torch.Tensor | None if spec.optional else torch.Tensor


def _choices(scalar: Scalar) -> Any:
    plain = type(scalar.default)
    return Literal[scalar.choices] if scalar.choices and plain is not bool else plain


def _returned(operator: Operator) -> Any:
    count = len(operator.fresh)
    return {0: None, 1: torch.Tensor}.get(count, tuple[(torch.Tensor,) * count])  # type: ignore[misc]


def text_of(operator: Operator) -> str:
    """What the operator computes, its tensors with shapes and dtypes, its parameters, results and errors."""
    dtypes = ", ".join(operator.dtypes)
    names = [*(spec.name for spec in operator.inputs), *(scalar.name for scalar in operator.scalars)]
    width = max(map(len, names))
    lines = [_sentence(operator.about), ""]
    for spec in operator.inputs:
        lines += _entry(
            spec.name, f"{_shape(spec)} {spec.dtype}{', or None' if spec.optional else ''}", spec.about, width
        )
    for scalar in operator.scalars:
        choices = (
            f", one of {', '.join(map(repr, scalar.choices))}"
            if scalar.choices and type(scalar.default) is not bool
            else ""
        )
        lines += _entry(scalar.name, f"{scalar.default!r}{choices}", scalar.about, width)
    results = [
        f"{spec.name} {_shape(spec)} {spec.dtype}{f' ({spec.about})' if spec.about else ''}" for spec in operator.fresh
    ]
    over = [f"overwrites {name}" for name in operator.overwritten]
    lines += ["", *_wrapped(f"Returns {'; '.join([*results, *over]) or 'None'}.", "    ")]
    lines += _wrapped(f"T is one dtype of {dtypes}.", "    ")
    conditions = "; ".join(f"{constraint.name} ({constraint.expression})" for constraint in operator.constraints)
    lines += _wrapped(
        "Raises UsageError where shapes, dtypes, devices or parameters do not fit"
        + (f", or a condition does not hold: {conditions}." if conditions else "."),
        "    ",
    )
    return "\n".join([*lines, "", f"More: opforge show {operator.name}"])


def _sentence(text: str) -> str:
    return textwrap.fill(f"{text[:1].upper()}{text[1:]}.", WIDTH, break_on_hyphens=False)


def _shape(spec: TensorSpec) -> str:
    shape = f"[{', '.join(spec.shape.split())}]"
    return f"list of {shape}" if spec.many is not None else shape


def _entry(name: str, what: str, about: str, width: int) -> list[str]:
    return _wrapped(f"{name:<{width}} {what}{f': {about}' if about else ''}", " " * (width + 3))


def _wrapped(text: str, hanging: str, first: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=hanging, break_on_hyphens=False)
