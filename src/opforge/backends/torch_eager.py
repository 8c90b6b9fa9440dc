"""PyTorch, eager and through torch.compile: one file defines `run(*inputs, **scalars)` and both backends use it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from opforge.backends.modules import installed, load_source, required
from opforge.backends.protocol import Artefact, Call, Capability, Kernel, Missing, Native, Way
from opforge.core.errors import EnvironmentLacks
from opforge.core.implementation import Implementation
from opforge.core.operator import ScalarValue

INSTALL = "pip install torch==2.13.0"


def torch_runs_on(device: str) -> bool:
    """Whether torch is installed and has this device type."""
    if not installed("torch"):
        return False
    if device == "cpu":
        return True
    import torch

    accelerator = torch.accelerator.current_accelerator()
    return torch.accelerator.is_available() and accelerator is not None and accelerator.type == device


class TorchEager:
    """PyTorch as it is: the baseline everybody has."""

    name = "torch"
    about = "PyTorch eager"

    def way(self, device: str) -> Way:
        if not installed("torch"):
            return Missing(what="PyTorch is not installed", remedy=f"install it with: {INSTALL}")
        if not torch_runs_on(device):
            return Missing(what=f"torch sees no {device} device here", remedy="use --device cpu, or check the driver with: opforge doctor")
        return Native(how="eager")

    def capabilities(self) -> tuple[Capability, ...]:
        way = self.way("cpu")
        return (Capability(backend=self.name, name="run", available=isinstance(way, Native), detail=self.about, remedy=INSTALL),)

    def environment(self, device: str) -> Mapping[str, str]:
        return {}

    def function(self, implementation: Implementation) -> Callable[..., Any]:
        """The `run` of the file."""
        if not installed("torch"):
            raise EnvironmentLacks(f"{implementation.name} needs PyTorch. Install it with: {INSTALL}")
        return cast(Callable[..., Any], required(load_source(implementation.source), "run", implementation.source))

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        run = self.function(implementation)

        def launch(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> Any:
            return run(*inputs, **scalars)

        return Kernel(run=launch, allocates=True)

    def compile_offline(self, implementation: Implementation, call: Call, target: str, folder: Path) -> tuple[Artefact, ...]:
        raise EnvironmentLacks(f"{implementation.name} has nothing to compile ahead: PyTorch eager calls its own library. Inspect a triton, cuda or cpp one.")


class TorchCompile(TorchEager):
    """The same file through torch.compile (Inductor)."""

    name = "compile"
    about = "torch.compile (Inductor)"

    def way(self, device: str) -> Way:
        way = super().way(device)
        if isinstance(way, Native) and device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            return Missing(what="torch.compile needs a C++ compiler on a CPU", remedy="install one with: apt-get install g++")
        return Native(how="Inductor") if isinstance(way, Native) else way

    def environment(self, device: str) -> Mapping[str, str]:
        # Inductor's pool of compile processes must not outlive a worker. The processor says itself which vector instructions it has:
        # Inductor would start a Python with torch for each of them to try
        return {"OPFORGE_PRELOAD": "torch opforge.backends.inductor_ready", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        import torch
        import torch._dynamo

        self.function(implementation)
        if reason := getattr(load_source(implementation.source), "NOT_COMPILED", ""):
            raise EnvironmentLacks(f"{implementation.name}: {reason}")
        _follow_cache_folder()
        # past its limit of recompilations torch.compile silently runs eager: then the record would name what did not run
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        torch._dynamo.config.recompile_limit = 64
        # a workload's own shape gets code of its own, as its users get; every other shape shares one dynamic graph
        own_shape = any(dict(workload.axes) == dict(call.axes) for workload in call.operator.workloads)
        compiled = torch.compile(self.function(implementation), dynamic=None if own_shape else True)

        def launch(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> Any:
            return compiled(*inputs, **scalars)

        return Kernel(run=launch, allocates=True)


def _follow_cache_folder() -> None:
    """Let Inductor's precompiled headers follow TORCHINDUCTOR_CACHE_DIR. Their folder is a constant that was read when the module was imported, in the
    server, before a worker was told which folder it may write to."""
    from torch._inductor import codecache

    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder and hasattr(codecache, "_HEADER_DIR"):
        codecache._HEADER_DIR = str(Path(folder) / "precompiled_headers")
        codecache._HEADER_LOCK_DIR = str(Path(folder) / "precompiled_headers" / "locks")
