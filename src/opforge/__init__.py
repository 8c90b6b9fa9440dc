"""opforge: a workbench for GPU operators.

The nouns are imported at once (they need the standard library alone); the verbs when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# the nouns
from opforge.core.errors import EnvironmentLacks as EnvironmentLacks, OpforgeError as OpforgeError, UsageError as UsageError
from opforge.core.implementation import Config as Config, Implementation as Implementation
from opforge.core.operator import (
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
from opforge.core.record import Environment as Environment, Record as Record
from opforge.core.timing import Timing as Timing
from opforge.core.verdict import Broken as Broken, Crash as Crash, Mismatch as Mismatch, Pass as Pass, Timeout as Timeout, Unsupported as Unsupported, Verdict as Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

__version__ = "0.1.0"


# the verbs
def get_kernel(backend: str, operation: str, name: str = "") -> Callable[..., Any]:
    """A callable of one backend's implementation of an operator: `get_kernel("triton", "softmax")(x)` (seed 000).

    backend     torch, compile, triton, cuda, tilelang or cpp
    operation   an operator's name
    name        which implementation, where the backend has several; default: the first that takes the call
    Takes the operator's tensors, then its parameters by name; returns a new tensor, or a tuple for several outputs. No Pass
    is asked for: this is the raw kernel. Raises UsageError for an unknown name or a call no implementation takes, and
    EnvironmentLacks when the backend cannot run here.
    """
    from opforge.workbench.kernels import raw_kernel

    return raw_kernel(backend, operation, name)
