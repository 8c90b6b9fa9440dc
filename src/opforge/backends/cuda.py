"""CUDA C++: nvcc for a GPU, called through TVM-FFI. Without a GPU the same file is compiled for the CPU against an
emulator of the CUDA execution model (blocks, warps, barriers, shared memory): verified there, never timed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from opforge.backends import native
from opforge.backends.cpp import host_compiler, native_kernel
from opforge.backends.interface import Artefact, Call, Capability, Emulated, ExecutionMode, Kernel, Missing, Native
from opforge.backends.module_loading import installed
from opforge.backends.torch_eager import torch_runs_on
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.language.errors import EnvironmentLacks, UsageError

DEVICE_FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-lineinfo")
# the fibers of the emulator need frames that probe their stack; the stand-in CUDA headers come before any real ones
EMULATOR_FLAGS = (
    *(
        "-std=c++17",
        "-O2",
        "-fopenmp",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-Wno-unknown-pragmas",
    ),
    *("-fstack-clash-protection", "-DOPFORGE_EMULATE", f"-I{native.INCLUDE / 'opforge' / 'emulator'}", "-x", "c++"),
)
NVCC_INSTALL = "install the CUDA toolkit 12.4 or newer, so that nvcc is on PATH"
TARGETS = ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")


def gencode(target: str) -> str:
    """The nvcc flag for one target.

    >>> gencode("sm_90a")
    '-gencode=arch=compute_90a,code=sm_90a'
    """
    return f"-gencode=arch=compute_{target.removeprefix('sm_')},code={target}"


def _require(implementation: Implementation, target: str) -> None:
    if implementation.arch not in ("", target):
        raise EnvironmentLacks(
            f"{implementation.name} needs {implementation.arch}, and the target here is {target}. "
            f"{_elsewhere(implementation)}"
        )


def _elsewhere(implementation: Implementation) -> str:
    return (
        f"Verify it on such a GPU, or look at its code with: opforge inspect {implementation.operator} "
        f"{implementation.name} --target {implementation.arch}"
    )


class Cuda:
    """CUDA C++ kernels."""

    name = "cuda"
    about = "CUDA C++ (nvcc) through TVM-FFI"

    def execution_mode(self, device: str) -> ExecutionMode:
        if not installed("tvm_ffi"):
            return Missing(what="Apache TVM-FFI is not installed", remedy=f"install it with: {native.FFI_INSTALL}")
        if device == "cpu":
            if shutil.which(host_compiler()) is None:
                return Missing(
                    what="no C++ compiler is on PATH for the emulator", remedy="install one with: apt-get install g++"
                )
            return Emulated(how="emulator")
        if device != "cuda":
            return Missing(
                what=f"CUDA kernels run on NVIDIA GPUs, not on {device}",
                remedy="use a triton or tilelang implementation there",
            )
        if not torch_runs_on("cuda"):
            return Missing(what="torch sees no CUDA device here", remedy="check the driver with: nvidia-smi")
        if shutil.which("nvcc") is None:
            return Missing(what="nvcc is not on PATH", remedy=NVCC_INSTALL)
        return Native(how="compiled with nvcc")

    def capabilities(self) -> tuple[Capability, ...]:
        on_gpu, on_cpu = self.execution_mode("cuda"), self.execution_mode("cpu")
        has_nvcc = shutil.which("nvcc") is not None
        return (
            Capability(
                backend=self.name,
                name="run",
                available=isinstance(on_gpu, Native),
                detail=getattr(on_gpu, "how", str(on_gpu)),
                remedy=getattr(on_gpu, "remedy", ""),
            ),
            Capability(
                backend=self.name,
                name="verify without a GPU",
                available=isinstance(on_cpu, Emulated),
                detail=getattr(on_cpu, "how", str(on_cpu)),
                remedy=getattr(on_cpu, "remedy", ""),
            ),
            Capability(
                backend=self.name,
                name="compile offline",
                available=has_nvcc,
                detail=native.compiler_version("nvcc") if has_nvcc else "nvcc is not on PATH",
                remedy=NVCC_INSTALL,
            ),
        )

    def environment(self, device: str) -> Mapping[str, str]:
        return {"OPFORGE_PRELOAD": "torch tvm_ffi"}

    def toolchain(self, device: str) -> native.Toolchain:
        """nvcc for the GPU that is here, or the host compiler with the emulator."""
        if device == "cpu":
            return native.Toolchain(
                compiler=host_compiler(), flags=EMULATOR_FLAGS, target=f"emulated-{native.host_isa()}"
            )
        import torch

        major, minor = torch.cuda.get_device_capability()
        # Hopper's and Blackwell's own instructions (wgmma, TMA) are only in the targets that end in "a"
        return self.device_toolchain(f"sm_{major}{minor}{'a' if major >= 9 else ''}")

    def device_toolchain(self, target: str) -> native.Toolchain:
        """nvcc for a named target, making a shared library."""
        return native.Toolchain(
            compiler="nvcc",
            flags=(
                *DEVICE_FLAGS,
                gencode(target),
                "-Xcompiler",
                "-fPIC,-fvisibility=hidden",
                "-shared",
                "-cudart",
                "static",
            ),
            target=target,
        )

    def toolchain_for(self, implementation: Implementation, device: str) -> native.Toolchain:
        """The toolchain for what is here. Raises EnvironmentLacks when the implementation needs another
        architecture.
        """
        if implementation.arch and device == "cpu":
            raise EnvironmentLacks(
                f"{implementation.name} needs {implementation.arch}, whose instructions the emulator lacks. "
                f"{_elsewhere(implementation)}"
            )
        toolchain = self.toolchain(device)
        _require(implementation, toolchain.target)
        return toolchain

    def build(self, implementation: Implementation, config: Config, device: str) -> None:
        """Compile without loading: none of the kernel's code runs."""
        native.library(implementation, config, self.toolchain_for(implementation, device))

    def build_call(self, device: str) -> None:
        """Compile what calls of these kernels go through, beside the kernels themselves."""
        native.helper_path(native.CALLER, host_compiler())

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        entry = native.library(implementation, call.config, self.toolchain_for(implementation, call.device))
        return native_kernel(entry, call)

    def compile_offline(
        self, implementation: Implementation, call: Call, target: str, folder: Path
    ) -> tuple[Artefact, ...]:
        if not re.fullmatch(r"sm_\d+[af]?", target):
            raise UsageError(f"No CUDA target named {target!r}. Choose one such as: {', '.join(TARGETS)}.")
        if shutil.which("nvcc") is None:
            raise EnvironmentLacks(f"Compiling {implementation.source.name} needs nvcc: {NVCC_INSTALL}.")
        _require(implementation, target)
        path = folder / f"{implementation.name}.cubin"
        output, took = native.compile_with(
            [
                "nvcc",
                *DEVICE_FLAGS,
                *native.own_options(implementation, call.config),
                gencode(target),
                "-cubin",
                "-Xptxas",
                "-v",
                *native.includes_of(implementation.source),
                str(implementation.source),
                "-o",
                str(path),
            ]
        )
        return (Artefact(kernel=implementation.name, kind="cubin", path=path, log=output, seconds=took),)
