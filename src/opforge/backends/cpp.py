"""C++ for the CPU: OpenMP and SIMD, compiled with the host's compiler, called through TVM-FFI."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.backends import native
from opforge.backends.interface import Artefact, Call, Capability, ExecutionMode, Kernel, Missing, Native
from opforge.backends.module_loading import installed
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import ScalarValue
from opforge.core.language.errors import UsageError

# these two let sqrt, exp and comparisons be vectorised; nothing that changes an answer (-ffast-math) is on by default
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
)


def host_compiler() -> str:
    """The C++ compiler on PATH: g++, then clang++, then c++; "g++" when there is none."""
    return next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), "g++")


class Cpp:
    """C++ kernels on the host's own cores."""

    name = "cpp"
    about = "C++ (OpenMP, SIMD) through TVM-FFI"

    def toolchain(self) -> native.Toolchain:
        """The host compiler, tuned for this machine."""
        return native.Toolchain(compiler=host_compiler(), flags=FLAGS, target=native.host_isa())

    def execution_mode(self, device: str) -> ExecutionMode:
        if device != "cpu":
            return Missing(what=f"C++ kernels run on the CPU, not on {device}", remedy="use --device cpu")
        if not installed("tvm_ffi"):
            return Missing(what="Apache TVM-FFI is not installed", remedy=f"install it with: {native.FFI_INSTALL}")
        if shutil.which(host_compiler()) is None:
            return Missing(what="no C++ compiler is on PATH", remedy="install one with: apt-get install g++")
        return Native(how=f"compiled with {host_compiler()}")

    def capabilities(self) -> tuple[Capability, ...]:
        mode = self.execution_mode("cpu")
        available = isinstance(mode, Native)
        detail = f"{native.compiler_version(host_compiler())}, for {native.host_isa()}" if available else str(mode)
        return (
            Capability(
                backend=self.name, name="run", available=available, detail=detail, remedy=getattr(mode, "remedy", "")
            ),
        )

    def environment(self, device: str) -> Mapping[str, str]:
        return {"OPFORGE_PRELOAD": "torch tvm_ffi"}

    def build(self, implementation: Implementation, config: Config, device: str) -> None:
        """Compile without loading: none of the kernel's code runs."""
        native.library(implementation, config, self.toolchain())

    def build_call(self, device: str) -> None:
        """Compile what calls of these kernels go through, beside the kernels themselves."""
        native.helper_path(native.CALLER, host_compiler())

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        entry = native.library(implementation, call.config, self.toolchain())
        return native_kernel(entry, call)

    def compile_offline(
        self, implementation: Implementation, call: Call, target: str, folder: Path
    ) -> tuple[Artefact, ...]:
        if target != "host":
            raise UsageError(
                f"{implementation.name} is C++ for the machine that compiles it, not for {target}. Leave --target "
                "away, or inspect a CUDA or Triton implementation."
            )
        toolchain = self.toolchain()
        path = folder / f"{implementation.name}.so"
        output, took = native.compile_with(native.command(implementation, call.config, toolchain, path))
        return (Artefact(kernel=implementation.name, kind="so", path=path, log=output, seconds=took),)


def native_kernel(entry: Any, call: Call) -> Kernel:
    """A Kernel around a compiled library: inputs, outputs, then the scalars as numbers."""
    function = native.entry_point(entry.path)
    numbers = native.scalar_arguments(call.operator, call.scalars)

    def launch(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> None:
        function(*native.one_by_one(inputs), *outputs, *numbers)

    def bound(tensors: Sequence[Any], shapes: Sequence[Sequence[int]]) -> Callable[..., bool] | None:
        return native.bound(function, tensors, shapes, numbers, host_compiler())

    seconds = entry.facts.get("seconds", "?")
    return Kernel(
        run=launch,
        notes=(f"{entry.how} ({seconds} s)" if entry.how == "compiled" else entry.how,),
        bound=bound,
        strided=True,
    )
