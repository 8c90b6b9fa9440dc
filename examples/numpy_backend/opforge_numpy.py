"""NumPy as a backend: `numpy_*.py` files define `run(*inputs, *outputs, **scalars, **config)` on arrays.

    pip install examples/numpy_backend

docs/backends.md explains each method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.backends import Artefact, Call, Capability, ExecutionMode, Kernel, Missing, Native
from opforge.backends.module_loading import installed, load_source, required
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import ScalarValue
from opforge.core.language.errors import UsageError


class NumPy:
    """Kernels in NumPy, on the CPU."""

    name = "numpy"
    about = "NumPy on the CPU"
    suffixes = (".py",)

    def execution_mode(self, device: str) -> ExecutionMode:
        """NumPy computes on the CPU itself, so its kernels are verified and timed there."""
        if device != "cpu":
            return Missing(what=f"NumPy runs on the CPU, not on {device}", remedy="use --device cpu")
        if not installed("numpy"):
            return Missing(what="NumPy is not installed", remedy="install it with: pip install numpy")
        return Native(how="by NumPy")

    def capabilities(self) -> tuple[Capability, ...]:
        """One line of `opforge doctor`."""
        mode = self.execution_mode("cpu")
        runs = isinstance(mode, Native)
        remedy = mode.remedy if isinstance(mode, Missing) else ""
        return (Capability(backend=self.name, name="run", available=runs, detail="NumPy", remedy=remedy),)

    def environment(self, device: str) -> Mapping[str, str]:
        """What the process that runs these kernels imports before it is forked from."""
        return {"OPFORGE_PRELOAD": "torch numpy"}

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        """The file's `run`, given arrays that share the tensors' memory."""
        function: Any = required(load_source(implementation.source), "run", implementation.source)
        config = call.config.as_dict()

        def run(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> None:
            function(*(tensor.numpy() for tensor in (*inputs, *outputs)), **scalars, **config)

        return Kernel(run=run)

    def compile_offline(
        self, implementation: Implementation, call: Call, target: str, folder: Path
    ) -> tuple[Artefact, ...]:
        """Nothing is compiled."""
        raise UsageError(f"{implementation.name} is NumPy, which is not compiled. Inspect another implementation.")
