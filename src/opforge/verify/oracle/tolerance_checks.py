"""What the functions of a definition return, held against what they promise: a slip is named, and is no trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.core.definition.operator import Operator
from opforge.core.definition.rounding_errors import Errors
from opforge.core.language.errors import UsageError
from opforge.core.language.fields import shown

FORMS = {
    0: ("Errors(largest, typical)", "Errors of tensors"),
    1: ("x.abs()", "a tensor"),
    2: ("(value, weight)", "a tuple of two tensors"),
}
"""What a function of a tolerance gives for one output, by how many tensors that is; 0 for Errors."""


def check_returned(operator: Operator, function: str, returned: Any, outputs: Mapping[str, Any], count: int) -> None:
    """Raises UsageError unless a tolerance's function returned a dict of outputs, each with `count` tensors (0: Errors)
    that broadcast to the output's shape.
    """
    example, wanted = FORMS[count]
    name = next(iter(outputs))
    says = f"Return for example {{{name!r}: {example}}}. Correct op.py."
    whose = f"The tolerance's {function} of {operator.name}"
    if not isinstance(returned, Mapping):
        raise UsageError(f"{whose} returns {shown(returned)}, no dict of outputs. {says}")
    for name, given in returned.items():
        if name not in outputs:
            raise UsageError(f"{whose} speaks of {name!r}, which is no output ({', '.join(outputs)}). {says}")
        parts = _parts(given, count)
        if parts is None or not all(_fits(part, outputs[name]) for part in parts):
            raise UsageError(
                f"{whose} returns {_described(given)} for {name}, not {wanted} of its shape "
                f"{tuple(outputs[name].shape)}, or one that broadcasts to it. {says}"
            )


def _parts(given: Any, count: int) -> tuple[Any, ...] | None:
    if count == 0:
        if not isinstance(given, Errors):
            return None
        return (given.largest, given.typical, *(() if given.reached is None else (given.reached,)))
    parts = given if isinstance(given, tuple) else (given,)
    return parts if len(parts) == count else None


def _fits(part: Any, output: Any) -> bool:
    import torch

    # a subclass would decide itself what a comparison with it gives
    if type(part) not in (torch.Tensor, torch.nn.Parameter) or part.is_complex():
        return False
    # torch.broadcast_shapes would import a symbolic algebra system first, a second of a verification of five
    missing = output.ndim - part.ndim
    return missing >= 0 and all(
        extent in (1, wanted) for extent, wanted in zip(part.shape, output.shape[missing:], strict=True)
    )


def _described(given: Any) -> str:
    shape = getattr(given, "shape", None)
    return shown(given) if shape is None else f"a {type(given).__name__} of shape {tuple(shape)}"
