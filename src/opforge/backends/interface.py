"""What a backend answers, whatever its language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.definition.shapes import Axes


@dataclass(frozen=True, kw_only=True)
class Native:
    """Kernels run on the device itself: they are verified and timed."""

    how: str


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """Kernels are interpreted or emulated here, not run by the device: they are verified and never timed."""

    how: str

    def __str__(self) -> str:
        return f"verified by {self.how} here, never timed"


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Nothing runs here: what is missing, and the command that brings it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


ExecutionMode = Native | Emulated | Missing


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One line of `opforge doctor`: something a backend can do here, or what it lacks."""

    backend: str
    name: str
    available: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a kernel is prepared for. `device` is a torch device type: "cpu", "cuda", "npu", …"""

    operator: Operator
    axes: Axes
    dtype: str
    scalars: Mapping[str, ScalarValue]
    config: Config
    device: str


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A prepared implementation.

    run        `run(inputs, outputs, scalars)`: tensors in the operator's order, variadic axes collapsed. It writes
               `outputs` and returns None, or (`allocates`) ignores `outputs` and returns what it computed
    allocates  the kernel makes its own outputs, and takes tensors as they are, variadic axes not collapsed
    notes      what the record should know of how it was made ("built ahead", "compiled in 1.2 s")
    again      the same as `run` at less cost on the host, for a caller whose tensors always have the same shapes and
               strides; None where there is no such way
    bound      `bound(tensors, shapes)`: a function of inputs and outputs one by one, for tensors of just the class of
               these. It runs the kernel, which sees them in `shapes`, with the scalars it was prepared for, and returns
               True; given others it does nothing and returns False. None where there is no such way, in general or for
               these
    strided    `bound` takes tensors of any strides, not contiguous ones alone
    into       of a kernel that allocates: `into(inputs, outputs, scalars)` writes the outputs given, by the function's
               own `out=`; None where it has none
    keep       of a gradient: `keep(inputs, scalars)` gives what the forward pass leaves for it, which is made before a
               clock starts, and
    resumed    `resumed(inputs, kept, scalars)` is the backward pass alone. `run` does both, one after the other
    function   of a kernel that allocates: the same as a function of tensors one by one, and scalars by name; None where
               `run` does more
    """

    run: Callable[[Sequence[Any], Sequence[Any], Mapping[str, ScalarValue]], Any]
    allocates: bool = False
    notes: tuple[str, ...] = ()
    again: Callable[[Sequence[Any], Sequence[Any], Mapping[str, ScalarValue]], Any] | None = None
    bound: Callable[[Sequence[Any], Sequence[Sequence[int]]], Callable[..., bool] | None] | None = None
    into: Callable[[Sequence[Any], Sequence[Any], Mapping[str, ScalarValue]], Any] | None = None
    strided: bool = False
    keep: Callable[[Sequence[Any], Mapping[str, ScalarValue]], Sequence[Any]] | None = None
    resumed: Callable[[Sequence[Any], Sequence[Any], Mapping[str, ScalarValue]], Any] | None = None
    function: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """One thing an offline compilation made: a cubin, a PTX file, AMD assembly, a source file; with the compiler's
    words.
    """

    kernel: str
    kind: str
    path: Path
    log: str = ""
    threads: int = 0
    seconds: float = 0.0
    facts: Mapping[str, int | str] | None = None


class Backend(Protocol):
    """One way to write kernels."""

    name: str
    about: str

    def execution_mode(self, device: str) -> ExecutionMode:
        """How kernels of this backend are executed for tensors on `device`, on this machine."""

    def capabilities(self) -> tuple[Capability, ...]:
        """Everything this backend can do, and what is missing here."""

    def environment(self, device: str) -> Mapping[str, str]:
        """Variables that the process which runs these kernels must start with."""

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        """Load or compile the implementation for a call. Raises EnvironmentLacks when `mode` is Missing."""

    def compile_offline(
        self, implementation: Implementation, call: Call, target: str, folder: Path
    ) -> tuple[Artefact, ...]:
        """Compile for a named target ("sm_90a", "gfx942", "host"), device or not, leaving the artefacts in `folder`."""
