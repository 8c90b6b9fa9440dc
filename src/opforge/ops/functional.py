"""Functions with the names, arguments and defaults of PyTorch's, computed by opforge's operators where one fits.

    from opforge.ops import functional as F

    F.softmax(x, dim=-1)            # as torch.nn.functional.softmax
    F.softmax.why(x, dim=0)         # which operator and kernel, or why PyTorch's own function computes it

The functions are those that the operators known here say they stand for (`like` in their op.py), one's own operators
too. A call that no operator fits goes to PyTorch's function of that name with the very arguments, so its result, its
errors and its gradients are PyTorch's. Such calls are: dtypes that the operator has not, dtypes or devices that differ,
`out=` and `inplace=`, gradients of an operator that has no gradient operator, and what `help(F.softmax)` says of each.
Under torch.autocast PyTorch decides the dtypes, so everything that autocast knows goes to PyTorch too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opforge import ops
from opforge.ops.lowering import standing_for
from opforge.registry import load

_registry = vars(ops)["_known_now"](load())

FUNCTIONS: Mapping[str, Callable[..., Any]] = standing_for([_registry.unasked(name) for name in _registry.names()])
"""Every function here, by its name."""

OPERATORS: tuple[str, ...] = tuple(
    sorted({name for function in FUNCTIONS.values() for name in function.operators})  # type: ignore[attr-defined]
)
"""The operators that they call, and those of their gradients."""

# made now, and not while torch.compile traces a call
for _name in OPERATORS:
    getattr(ops, _name)

globals().update(FUNCTIONS)


def __getattr__(name: str) -> Callable[..., Any]:
    raise AttributeError(
        f"opforge.ops.functional has no {name!r}: no operator here stands for a function of that name. It has: "
        f"{', '.join(FUNCTIONS)}. An operator says what it stands for in its op.py: like=(Like(function=…, lower=…),)."
    )


def __dir__() -> list[str]:
    return sorted((*globals(), *FUNCTIONS))
