"""Functions of other libraries, called as their users call them: what opforge's kernels are compared with beside
PyTorch.

A file defines `run(*inputs, **scalars)`, as for the torch backend, and says with NEEDS which package it calls. opforge
needs none of them: where one is not installed, its rows say so.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping
from typing import Any

from opforge.backends import compile_phase
from opforge.backends.interface import Call, Capability, ExecutionMode, Kernel, Missing, Native
from opforge.backends.module_loading import installed
from opforge.backends.torch_eager import TorchEager
from opforge.backends.triton_lang import INTERPRET, PRELOAD_ON_A_GPU
from opforge.core.definition.implementation import Implementation
from opforge.core.language.errors import EnvironmentLacks


class Library(TorchEager):
    """Other libraries' functions, on a GPU."""

    name = "library"
    about = "other libraries' functions"

    def execution_mode(self, device: str) -> ExecutionMode:
        if device == "cpu":
            return Missing(
                what="the libraries that are compared with are written for GPUs",
                remedy="run this on a machine with one, with --device cuda",
            )
        mode = super().execution_mode(device)
        return Native(how="as its users call it") if isinstance(mode, Native) else mode

    def capabilities(self) -> tuple[Capability, ...]:
        mode = self.execution_mode("cuda")
        known = {"Liger Kernel": "liger_kernel", "FlashAttention-4": "flash_attn"}
        here = ", ".join(
            f"{name} ({'installed' if installed(module) else 'not installed'})" for name, module in known.items()
        )
        return (
            Capability(
                backend=self.name,
                name="run",
                available=isinstance(mode, Native) and any(map(installed, known.values())),
                detail=f"{here}; {mode.how if isinstance(mode, Native) else mode}",
                remedy="pip install --no-deps liger-kernel, or flash-attn-4, on a machine with a GPU",
            ),
        )

    def environment(self, device: str) -> Mapping[str, str]:
        # FlexAttention goes through Inductor, whose pool of compile processes must not outlive a worker
        return {
            INTERPRET: "0",
            "OPFORGE_PRELOAD": PRELOAD_ON_A_GPU if installed("triton") else "torch",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        # what another library compiles at its first call, and with what, nobody says
        compile_phase.report(lambda: False)
        return super().prepare(implementation, call)

    def function(self, implementation: Implementation) -> Callable[..., Any]:
        """The `run` of the file. Raises EnvironmentLacks when the package that it needs is not installed."""
        try:
            return super().function(implementation)
        except ModuleNotFoundError as error:
            raise EnvironmentLacks(_wanted(implementation, implementation.needs or str(error.name))) from error

    def lacks(self, implementation: Implementation) -> str | None:
        """What `function` would raise, where the package that the file names is surely not here: no process has to
        start for it. Nothing is imported.
        """
        package = re.split(r"[=<>!~ \[;]", implementation.needs, maxsplit=1)[0]
        if not package or installed(package.replace("-", "_")):
            return None
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return _wanted(implementation, implementation.needs)
        return None


def _wanted(implementation: Implementation, package: str) -> str:
    return f"{implementation.name} needs {package}. Install it with: pip install --no-deps {package}"
