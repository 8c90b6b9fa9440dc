"""Triton: run on a GPU, interpreted on a CPU (verified, never timed), compiled offline for a named target.

A file defines kernels and `launch(*inputs, *outputs, *, scalars and config by name)`, which computes a grid and
launches; or, where it has no `launch`, `run(*inputs, *, scalars and config by name)`, which returns its outputs, as a
public launcher or `torch.autograd.Function` does.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from opforge.backends import compile_phase, grid_limits, triton_replay
from opforge.backends.cpp import host_compiler
from opforge.backends.interface import Artefact, Call, Capability, Emulated, ExecutionMode, Kernel, Missing, Native
from opforge.backends.module_loading import installed, load_source, required
from opforge.backends.torch_eager import allocating, torch_runs_on
from opforge.core.definition.call_form import arguments, declared, formed
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import collapsed_shape
from opforge.core.language.errors import EnvironmentLacks, unknown

INSTALL = "pip install triton==3.6.0"
INTERPRET = "TRITON_INTERPRET"
PRELOAD_ON_A_GPU = "torch opforge.backends.triton_preload"
"""What the server imports that workers for a GPU are forked from."""
TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx942")


def _target_of(device: str) -> str:
    """The GPU that is here, as compilers name it: "sm_90a", "gfx942"."""
    import torch

    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _require(implementation: Implementation, target: str) -> None:
    if implementation.arch != target:
        where = f"opforge inspect {implementation.operator} {implementation.name} --target {implementation.arch}"
        raise EnvironmentLacks(
            f"{implementation.name} not run: it needs {implementation.arch}, and here is {target}. Verify it on such "
            f"a GPU, or look at its code with: {where}"
        )


class Triton:
    """Triton kernels (and Gluon, where plain Triton cannot reach the hardware)."""

    name = "triton"
    about = "Triton"

    def execution_mode(self, device: str) -> ExecutionMode:
        if not installed("triton"):
            return Missing(what="Triton is not installed", remedy=f"install it with: {INSTALL}")
        if device == "cpu":
            return Emulated(how="interpreter")
        if not torch_runs_on(device):
            return Missing(what=f"torch sees no {device} device here", remedy="use --device cpu for the interpreter")
        return Native(how="compiled by Triton")

    def capabilities(self) -> tuple[Capability, ...]:
        here = installed("triton")
        version = f"Triton {importlib.metadata.version('triton')}" if here else "Triton is not installed"
        gpu = self.execution_mode("cuda")
        return (
            Capability(
                backend=self.name,
                name="run",
                available=isinstance(gpu, Native),
                detail=getattr(gpu, "how", str(gpu)),
                remedy=getattr(gpu, "remedy", ""),
            ),
            Capability(
                backend=self.name,
                name="verify without a GPU",
                available=here,
                detail=f"{version}, interpreter",
                remedy=INSTALL,
            ),
            Capability(
                backend=self.name,
                name="compile offline",
                available=here,
                detail=f"{version}, for {', '.join(TARGETS)}",
                remedy=INSTALL,
            ),
        )

    def environment(self, device: str) -> Mapping[str, str]:
        # the interpreter is chosen when triton is imported, so the process must start with it
        return {
            INTERPRET: "1" if device == "cpu" else "0",
            "OPFORGE_PRELOAD": "torch opforge.backends.triton_interpreter" if device == "cpu" else PRELOAD_ON_A_GPU,
        }

    def launcher(self, implementation: Implementation) -> Callable[..., None]:
        """The `launch` of the file."""
        if not installed("triton"):
            raise EnvironmentLacks(f"{implementation.name} needs Triton. Install it with: {INSTALL}")
        return cast(Callable[..., None], required(load_source(implementation.source), "launch", implementation.source))

    def returning(self, implementation: Implementation) -> Callable[..., Any] | None:
        """The `run` of a file that returns its outputs; None where it has a `launch`."""
        module = load_source(implementation.source) if installed("triton") else None
        return None if hasattr(module, "launch") else getattr(module, "run", None)

    def build_call(self, device: str) -> None:
        """Compile what calls of these kernels go through, beside the kernels themselves."""
        if device == "cuda" and installed("triton"):
            triton_replay.build_launcher(host_compiler())

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        if call.device == "cpu" and os.environ.get(INTERPRET) != "1":
            raise EnvironmentLacks(
                f"{implementation.name} runs on a CPU only under the interpreter. Start with {INTERPRET}=1, or leave "
                "--in-process away."
            )
        if implementation.arch:
            _require(implementation, "interpreter" if call.device == "cpu" else _target_of(call.device))
        config = call.config.as_dict()
        if (returning := self.returning(implementation)) is not None:
            if call.device != "cpu":
                compile_phase.report(compile_phase.around_triton)
            keep = getattr(load_source(implementation.source), "keep", None)
            return allocating(functools.partial(returning, **config) if config else returning, keep=keep)
        launch = self.launcher(implementation)

        def run(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> None:
            launch(*inputs, *outputs, **scalars, **config)

        if call.device == "cpu":
            return Kernel(run=run)
        compile_phase.report(compile_phase.around_triton)
        if call.device != "cuda":
            return Kernel(run=run)
        module = load_source(implementation.source)

        def with_parameters(*tensors: Any) -> None:
            launch(*tensors, **declared(call.operator, call.scalars), **config)

        def bound(tensors: Sequence[Any], shapes: Sequence[Sequence[int]]) -> Callable[..., bool] | None:
            return triton_replay.bound(with_parameters, module, tensors, shapes, host_compiler())

        return Kernel(run=run, again=triton_replay.Repeated(run, module), bound=bound)

    def compile_offline(
        self, implementation: Implementation, call: Call, target: str, folder: Path
    ) -> tuple[Artefact, ...]:
        if os.environ.get(INTERPRET) == "1" and "triton" in sys.modules:
            raise EnvironmentLacks(
                f"Triton was started as an interpreter ({INTERPRET}=1) and cannot compile. Unset it and try again."
            )
        if implementation.arch:
            # sm_90 is asked for where sm_90a is meant
            _require(implementation, f"{target}a" if f"{target}a" == implementation.arch else target)
        returning = self.returning(implementation)
        launch = returning or self.launcher(implementation)
        import torch

        from opforge.backends import triton_offline

        known = triton_offline.TARGETS
        if target.rstrip("a") not in known and target not in known:
            raise unknown("Triton target", target, known)
        # Triton adds the "a" itself where the architecture has instructions of its own
        chosen = known.get(target) or known[target.rstrip("a")]
        operator = formed(call.operator, {**call.axes, **call.scalars})
        tensors = [
            torch.empty(
                collapsed_shape(spec.shape, call.axes),
                dtype=getattr(torch, spec.dtype_for(call.dtype, call.scalars)),
                device="meta",
            )
            for spec in (*operator.inputs, *operator.fresh)
        ]
        count = len(operator.inputs)
        launches = triton_offline.capture_launches(
            launch,
            *arguments(operator, tensors[:count]),
            *(tensors[count:] if returning is None else ()),
            target=chosen,
            **declared(operator, call.scalars),
            **call.config.as_dict(),
        )
        written: list[Artefact] = []
        for number, captured in enumerate(launches):
            if (
                target.startswith("sm_")
                and (error := grid_limits.too_large(captured.grid, captured.fn.__name__)) is not None
            ):
                raise error
            started = time.perf_counter()
            artefacts = triton_offline.compile_offline(captured)
            took = time.perf_counter() - started
            for stage, content in artefacts.asm.items():
                path = folder / f"{implementation.name}-{number}-{artefacts.name}.{stage}"
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
                if stage in ("cubin", "amdgcn"):
                    written.append(
                        Artefact(
                            kernel=artefacts.name,
                            kind=stage,
                            path=path,
                            threads=artefacts.threads_per_block,
                            seconds=took,
                            facts={
                                "shared_bytes": artefacts.shared_bytes,
                                "grid": "x".join(map(str, captured.grid)),
                                # of an autotuned kernel
                                "config": ", ".join(f"{name}={value}" for name, value in captured.config.items()),
                            },
                        )
                    )
        return tuple(written)
