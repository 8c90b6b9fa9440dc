"""PyTorch, eager and through torch.compile: one file calls what a user calls, and both backends use it.

It defines `run(*inputs, **scalars)`. Where the function that it calls has an `out=`, `run_out(*inputs, *outputs,
**scalars)` calls it so. The file of a gradient may define `keep(*inputs, **scalars)`, which gives a tuple: what the
forward pass leaves for the backward pass. `run(*inputs, *kept, **scalars)` is then the backward pass alone, and `keep`
is called before a clock starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from opforge.backends import cache, compile_phase
from opforge.backends.interface import Artefact, Call, Capability, ExecutionMode, Kernel, Missing, Native
from opforge.backends.module_loading import installed, load_source, required
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import ScalarValue
from opforge.core.language.errors import EnvironmentLacks

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

    def execution_mode(self, device: str) -> ExecutionMode:
        if not installed("torch"):
            return Missing(what="PyTorch is not installed", remedy=f"install it with: {INSTALL}")
        if not torch_runs_on(device):
            return Missing(
                what=f"torch sees no {device} device here",
                remedy="use --device cpu, or check the driver with: nvidia-smi"
                if device == "cuda"
                else f"use --device cpu, or install a torch for {device}",
            )
        return Native(how="eager")

    def capabilities(self) -> tuple[Capability, ...]:
        mode = self.execution_mode("cpu")
        return (
            Capability(
                backend=self.name, name="run", available=isinstance(mode, Native), detail=self.about, remedy=INSTALL
            ),
        )

    def environment(self, device: str) -> Mapping[str, str]:
        return {}

    def function(self, implementation: Implementation) -> Callable[..., Any]:
        """The `run` of the file."""
        if not installed("torch"):
            raise EnvironmentLacks(f"{implementation.name} needs PyTorch. Install it with: {INSTALL}")
        return cast(Callable[..., Any], required(load_source(implementation.source), "run", implementation.source))

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        run = self.function(implementation)
        module = load_source(implementation.source)
        return allocating(run, keep=getattr(module, "keep", None), run_out=getattr(module, "run_out", None))

    def compile_offline(
        self, implementation: Implementation, call: Call, target: str, folder: Path
    ) -> tuple[Artefact, ...]:
        raise EnvironmentLacks(
            f"{implementation.name} has nothing to compile ahead: PyTorch eager calls its own library. Inspect a "
            "triton, cuda or cpp one."
        )


class TorchCompile(TorchEager):
    """The same file through torch.compile (Inductor)."""

    name = "compile"
    about = "torch.compile (Inductor)"

    def execution_mode(self, device: str) -> ExecutionMode:
        mode = super().execution_mode(device)
        if isinstance(mode, Native) and device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            return Missing(
                what="torch.compile needs a C++ compiler on a CPU", remedy="install one with: apt-get install g++"
            )
        return Native(how="Inductor") if isinstance(mode, Native) else mode

    def environment(self, device: str) -> Mapping[str, str]:
        # Inductor's pool of compile processes must not outlive a worker. The processor says itself which vector
        # instructions it has: Inductor would start a Python with torch for each of them to try
        return {
            "OPFORGE_PRELOAD": f"torch opforge.backends.inductor{'' if device == 'cpu' else '_gpu'}_preload",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
        }

    def build(self, implementation: Implementation, config: Config, device: str) -> None:
        """What every kernel needs is compiled before any of this one's code runs."""
        if device == "cpu":
            _precompile_headers()

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        import torch

        from opforge.backends.torch_private import TESTED, limit_recompilations, report_inductor

        self.function(implementation)
        if reason := getattr(load_source(implementation.source), "NOT_COMPILED", ""):
            raise EnvironmentLacks(f"{implementation.name}: {reason}")
        _follow_cache_folder()
        compile_phase.report(lambda: report_inductor(compile_phase.compiling))
        # past its limit of recompilations torch.compile silently runs eager: then the record would name what did not
        # run
        if not limit_recompilations(64):
            raise EnvironmentLacks(
                f"torch {torch.__version__} cannot be told to fail where torch.compile would run eager: "
                f"install one that opforge was tested with, {' to '.join(TESTED)}."
            )
        # a workload's own shape gets code of its own, as its users get; every other shape shares one dynamic graph
        own_shape = any(dict(workload.axes) == dict(call.axes) for workload in call.operator.workloads)
        if own_shape:
            _as_in_a_new_process(implementation, call)
        dynamic = None if own_shape else True
        keep = getattr(load_source(implementation.source), "keep", None)
        return allocating(
            torch.compile(self.function(implementation), dynamic=dynamic),
            keep=torch.compile(keep, dynamic=dynamic) if keep else None,
        )


def allocating(
    run: Callable[..., Any], *, keep: Callable[..., Any] | None = None, run_out: Callable[..., Any] | None = None
) -> Kernel:
    """The Kernel of functions of tensors and scalars: see the head of this module."""

    def into(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> Any:
        assert run_out is not None
        return run_out(*inputs, *outputs, **scalars)

    def kept(inputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> Sequence[Any]:
        assert keep is not None
        return tuple(keep(*inputs, **scalars))

    def resumed(inputs: Sequence[Any], left: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> Any:
        return run(*inputs, *left, **scalars)

    def whole(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> Any:
        return run(*inputs, **scalars) if keep is None else resumed(inputs, kept(inputs, scalars), scalars)

    return Kernel(
        run=whole,
        allocates=True,
        into=into if run_out else None,
        keep=kept if keep else None,
        resumed=resumed if keep else None,
        function=None if keep else run,
    )


def _trusted_headers() -> Path:
    """Where headers are precompiled before any kernel's code has run: for this torch and this compiler, and for
    everybody to read.
    """
    import torch

    compiler = next((name for name in ("g++", "clang++") if shutil.which(name)), "")
    parts = {
        "torch": torch.__version__,
        "compiler": str(Path(shutil.which(compiler) or os.devnull).stat().st_mtime_ns),
        "python": sys.version,
    }
    return cache.cache_root() / "jit" / f"headers-{cache.key_of(parts)[:16]}"


def _precompile_headers() -> None:
    """Let Inductor precompile the headers that its C++ needs, once, by compiling a function of our own in a process of
    its own: it takes seconds, and each
    kernel has a cache folder to itself."""
    folder = _trusted_headers()
    if (folder / "complete").exists():
        return
    with cache.locked(folder.with_suffix(".lock")):
        if (folder / "complete").exists():
            return
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException), tempfile.TemporaryDirectory() as scratch:
                import torch

                from opforge.backends.torch_private import keep_headers_in

                os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
                keep_headers_in(str(folder))
                torch.compile(lambda x: x * 2 + 1, dynamic=True)(torch.ones(64))
                status = 0
            os._exit(status)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and folder.is_dir():
            (folder / "complete").touch()


_shape_now: list[object] = [None]


def _as_in_a_new_process(implementation: Implementation, call: Call) -> None:
    """Before the first call of a workload's shape: let Dynamo forget the other shapes that this process has seen, or it
    would make this one dynamic.
    Further bindings of the same call share the code of the first."""
    import torch

    shape = (implementation.source, sorted(call.axes.items()), call.dtype, sorted(call.scalars.items()), call.device)
    if shape != _shape_now[0]:
        _shape_now[0] = shape
        torch.compiler.reset()


def _follow_cache_folder() -> None:
    """Let Inductor's precompiled headers follow TORCHINDUCTOR_CACHE_DIR. Their folder is a constant that was read when
    the module was imported, in the server, before a worker was told which folder it may write to. What was precompiled
    for everybody is seen there through links.
    """
    from opforge.backends.torch_private import keep_headers_in

    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not folder or not keep_headers_in(str(Path(folder) / "precompiled_headers")):
        return
    own, shared = Path(folder) / "precompiled_headers", _trusted_headers()
    for path in shared.rglob("*"):
        place = own / path.relative_to(shared)
        if path.is_file() and path.parent.name != "locks" and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another process was there first
                place.symlink_to(path)
