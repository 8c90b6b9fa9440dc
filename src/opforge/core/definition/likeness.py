"""Which PyTorch function an operator stands for, and how a call of that function becomes a call of the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from opforge.core.language.errors import UsageError
from opforge.core.language.fields import check_fields


class Lowered(NamedTuple):
    """A call of an operator: `finish(operator(*tensors, **scalars))`.

    tensors   the operator's inputs, in the definition's order
    scalars   parameters by name, and optional inputs by theirs
    finish    what makes the function's result of the operator's; None where they are the same
    """

    tensors: Sequence[Any]
    scalars: Mapping[str, Any] = {}
    finish: Callable[[Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Like:
    """A function of PyTorch's that the operator stands for in `opforge.ops.functional`.

    function       its name from torch on ("torch.nn.functional.softmax"); a Python function where PyTorch has it only
                   in several steps
    lower          `lower(*arguments, **named)` with the function's own signature gives a Lowered, or says in few words
                   why PyTorch has to compute this call. It neither computes nor copies. dtypes, devices and gradients
                   that the operator has are asked for it by the caller
    autocast       whether torch.autocast has a say in the function's dtypes
    only_kernels   whether a call is taken only where dispatch finds a kernel of opforge's, for its gradient too:
                   PyTorch's own function is better than PyTorch through the operator
    name           under which opforge.ops.functional has it; the last part of `function`'s where not given
    """

    function: str | Callable[..., Any]
    lower: Callable[..., Lowered | str]
    autocast: bool = True
    only_kernels: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.function, str) and not self.function.startswith("torch."):
            raise UsageError(
                f"function of a Like is {self.function!r}. Name it from torch on: function="
                '"torch.nn.functional.softmax".'
            )
        if not self.name:
            last = self.function.rsplit(".", 1)[-1] if isinstance(self.function, str) else self.function.__name__
            object.__setattr__(self, "name", last)
        if not self.name.isidentifier():
            raise UsageError(f'name of a Like is {self.name!r}. Give a Python name: name="swiglu".')
