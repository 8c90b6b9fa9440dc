"""opforge: a workbench for GPU operators.

The nouns need the standard library alone; the verbs import what they need when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from opforge.core.definition.implementation import Config as Config, Implementation as Implementation
from opforge.core.definition.operator import (
    Case as Case,
    Constraint as Constraint,
    Cost as Cost,
    Law as Law,
    Operator as Operator,
    Scalar as Scalar,
    TensorSpec as TensorSpec,
    Tolerance as Tolerance,
    Workload as Workload,
)

# the nouns that a definition is made of
from opforge.core.language.errors import (
    EnvironmentLacks as EnvironmentLacks,
    OpforgeError as OpforgeError,
    UsageError as UsageError,
)
from opforge.core.language.version import __version__ as __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from opforge.core.evidence.record import Environment as Environment, Record as Record
    from opforge.core.evidence.timing import Timing as Timing
    from opforge.core.evidence.verdict import (
        Broken as Broken,
        Crash as Crash,
        Mismatch as Mismatch,
        Pass as Pass,
        Timeout as Timeout,
        Unsupported as Unsupported,
        Verdict as Verdict,
    )


# the nouns that an answer is made of: imported when they are first named, so that `opforge list` doesn't wait for them
_ANSWERS = {"Environment": "record", "Record": "record", "Timing": "timing"} | dict.fromkeys(
    ("Broken", "Crash", "Mismatch", "Pass", "Timeout", "Unsupported", "Verdict"), "verdict"
)


def __getattr__(name: str) -> Any:
    if name not in _ANSWERS:
        raise AttributeError(f"module 'opforge' has no attribute {name!r}")
    return getattr(importlib.import_module(f"opforge.core.evidence.{_ANSWERS[name]}"), name)


# the verbs
def get_kernel(backend: str, operation: str, name: str = "") -> Callable[..., Any]:
    """A callable of one backend's implementation of an operator: `get_kernel("triton", "softmax")(x)` (seed 000).

    backend     torch, compile, triton, cuda, tilelang, cpp or library
    operation   an operator's name
    name        which implementation, where the backend has several; default: the first that takes the call
    Takes the operator's tensors, then its parameters by name; returns a new tensor, or a tuple for several outputs. No
    Pass is asked for: this is the raw kernel. Raises UsageError for an unknown name or a call no implementation takes,
    and EnvironmentLacks when the backend cannot run here.
    """
    from opforge.dispatch.raw_kernel import raw_kernel

    return raw_kernel(backend, operation, name)


def patch(model: Any, **options: Any) -> Any:
    """Patch a model in place with opforge's operators, and return it (opforge.model.patch says what `options` are):
    `opforge.patch(model, example=inputs, check=True)`.
    """
    from opforge.model.patch import patch

    return patch(model, **options)


def unpatch(model: Any) -> Any:
    """Take a patch off: the model is what it was, bit for bit. Returns the model."""
    from opforge.model.undoing import unpatch

    return unpatch(model)


def receipt(model: Any) -> Any:
    """What a patch did to each call site of a model: `print(opforge.receipt(model))`."""
    from opforge.model.undoing import receipt

    return receipt(model)
