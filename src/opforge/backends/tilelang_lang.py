"""TileLang: compiled for the GPU that is here, or through its C target for a CPU (run and timed there); lowered
offline.

A file defines `program(*, dtype, target, **scalars, **config)`, which builds a prim_func over symbolic sizes, and may
define `variant(axes, dtype) -> dict`: extra keywords for `program` where one program cannot serve every size.
`target` is "c" or "cuda". See `tilelang_tools` for what both targets need said differently.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from opforge.backends import cache, native
from opforge.backends.compile_phase import compiling
from opforge.backends.cpp import host_compiler
from opforge.backends.interface import Artefact, Call, Capability, ExecutionMode, Kernel, Missing, Native
from opforge.backends.module_loading import installed, load_source, required
from opforge.backends.torch_eager import torch_runs_on
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import ScalarValue
from opforge.core.language.errors import EnvironmentLacks

INSTALL = "pip install tilelang==0.1.15 apache-tvm-ffi==0.1.12"
ALIGNED = 16
"""TMA takes addresses that are multiples of this many bytes."""
C_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-w")


def _quiet() -> None:
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    os.environ.setdefault("TILELANG_CACHE_DIR", str(cache.cache_root() / "tilelang"))


class TileLang:
    """TileLang kernels."""

    name = "tilelang"
    about = "TileLang"

    def execution_mode(self, device: str) -> ExecutionMode:
        if not installed("tilelang"):
            return Missing(what="TileLang is not installed", remedy=f"install it with: {INSTALL}")
        if device == "cpu":
            if shutil.which(host_compiler()) is None:
                return Missing(
                    what="TileLang's C target needs a C++ compiler", remedy="install one with: apt-get install g++"
                )
            return Native(how="TileLang's C target")
        if device != "cuda" or not torch_runs_on(device):
            return Missing(
                what=f"torch sees no {device} device here that TileLang runs on",
                remedy="use --device cpu for its C target",
            )
        return Native(how="compiled by TileLang")

    def capabilities(self) -> tuple[Capability, ...]:
        here = installed("tilelang")
        version = f"TileLang {importlib.metadata.version('tilelang')}" if here else "TileLang is not installed"
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
                backend=self.name, name="run on a CPU", available=here, detail=f"{version}, C target", remedy=INSTALL
            ),
            Capability(
                backend=self.name,
                name="compile offline",
                available=here and shutil.which("nvcc") is not None,
                detail=f"{version}, lowered to CUDA",
                remedy=INSTALL,
            ),
        )

    def environment(self, device: str) -> Mapping[str, str]:
        return {
            "OPFORGE_PRELOAD": "torch tilelang",
            "TILELANG_PRINT_ON_COMPILATION": "0",
            "TILELANG_CACHE_DIR": str(cache.cache_root() / "tilelang"),
        }

    def program(
        self, implementation: Implementation, call: Call, target: str, *, aligned: bool = True
    ) -> tuple[Any, tuple[Any, ...]]:
        """The prim_func for a call on a target, and a key that is equal for calls which share it. Where an address is
        no
        multiple of 16 bytes (`aligned` False), the file's UNALIGNED replaces what it names of the config."""
        if not installed("tilelang"):
            raise EnvironmentLacks(f"{implementation.name} needs TileLang. Install it with: {INSTALL}")
        _quiet()
        module = load_source(implementation.source)
        build = cast(Callable[..., Any], required(module, "program", implementation.source))
        variant = getattr(module, "variant", None)
        extra = variant(call.axes, call.dtype) if variant is not None else {}
        choices = {
            **call.scalars,
            **call.config.as_dict(),
            **extra,
            **({} if aligned else getattr(module, "UNALIGNED", {})),
        }
        key = (module.__name__, call.dtype, target, tuple(sorted(choices.items())))
        return (lambda: build(dtype=call.dtype, target=target, **choices)), key

    def build_call(self, device: str) -> None:
        """Compile what calls of these kernels go through, beside the kernels themselves."""
        native.helper_path(native.CALLER, host_compiler())

    def prepare(self, implementation: Implementation, call: Call) -> Kernel:
        target = "c" if call.device == "cpu" else "cuda"
        if implementation.arch and target == "c":
            where = f"opforge inspect {implementation.operator} {implementation.name} --target {implementation.arch}"
            raise EnvironmentLacks(
                f"{implementation.name} not run: it needs {implementation.arch}, and here is the C target. Verify it "
                f"on such a GPU, or look at its code with: {where}"
            )
        build, key = self.program(implementation, call, target)
        kernel = _compiled(key, target, _Build(build))
        other, other_key = self.program(implementation, call, target, aligned=False)
        as_bits = target == "c" and call.dtype == "bfloat16"
        import torch

        def run(inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, ScalarValue]) -> None:
            if any(isinstance(tensor, list) for tensor in inputs):
                raise EnvironmentLacks(f"{implementation.name}: a TileLang program takes no lists of tensors.")
            # a program has no place for what is not given: it says so itself, by its parameter has_NAME
            tensors = tuple(tensor for tensor in (*inputs, *outputs) if tensor is not None)
            if as_bits:
                # the C target has no bfloat16: its bits travel as uint16, in the same memory
                tensors = tuple(
                    tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor for tensor in tensors
                )
            if target != "c" and other_key != key and any(tensor.data_ptr() % ALIGNED for tensor in tensors):
                _compiled(other_key, target, _Build(other))(*tensors)
            else:
                kernel(*tensors)

        entry = _entry(kernel)
        if target == "c" or entry is None:
            return Kernel(run=run)

        def bound(tensors: Sequence[Any], shapes: Sequence[Sequence[int]]) -> Callable[..., bool] | None:
            return native.bound(entry, tensors, shapes, (), host_compiler(), ALIGNED if other_key != key else 1)

        return Kernel(run=run, bound=bound)

    def code(self, implementation: Implementation, call: Call) -> str:
        """The source that the compiler makes for a call, compiled into its cache on the way. It is not run."""
        target = "c" if call.device == "cpu" else "cuda"
        build, key = self.program(implementation, call, target)
        made: Any = _compiled(key, target, _Build(build))
        return str(made.get_kernel_source())

    def compile_offline(
        self, implementation: Implementation, call: Call, target: str, folder: Path
    ) -> tuple[Artefact, ...]:
        if shutil.which("nvcc") is None:
            raise EnvironmentLacks(
                "TileLang's CUDA source is assembled with nvcc, which is not on PATH. Install the CUDA toolkit."
            )
        build, _ = self.program(implementation, call, "cuda")
        import tilelang
        import tvm

        arch = f"{target}a" if target == "sm_90" else target
        chosen = tvm.target.Target({"kind": "cuda", "arch": arch})
        with chosen:
            text = tilelang.lower(build(), target=chosen).kernel_source
        source = folder / f"{implementation.name}.cu"
        source.write_text(text, encoding="utf-8")
        root = Path(tilelang.__file__).parent
        path = folder / f"{implementation.name}.cubin"
        output, took = native.compile_with(
            [
                *(
                    "nvcc",
                    "-std=c++20",
                    "-w",
                    "-cubin",
                    f"-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch}",
                ),
                *(
                    f"-I{root / 'src'}",
                    f"-I{root / '3rdparty' / 'cutlass' / 'include'}",
                    "-Xptxas",
                    "-v",
                    str(source),
                    "-o",
                    str(path),
                ),
            ]
        )
        return (Artefact(kernel=implementation.name, kind="cubin", path=path, log=output, seconds=took),)


def _entry(kernel: Any) -> Callable[..., Any] | None:
    """The function of TVM-FFI that a compiled kernel calls, without TileLang's Python before it; None where it makes
    outputs, or is called in another way.
    """
    import tvm_ffi

    adapter = getattr(kernel, "adapter", None)
    if (
        adapter is None
        or not hasattr(adapter, "get_exportable_executable")
        or adapter.result_idx
        or getattr(adapter, "_ffi_callee_allocated_output_abi", False)
    ):
        return None
    made = adapter.get_exportable_executable()
    entry = (made.jit() if hasattr(made, "jit") else made).main
    return entry if isinstance(entry, tvm_ffi.Function) else None


class _Build:
    """A builder that does not take part in cache keys."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Build)


@lru_cache(maxsize=256)
def _compiled(key: tuple[Any, ...], target: str, build: _Build) -> Callable[..., Any]:
    import tilelang

    # the file's own code, whose loops are not the compiler's
    program = build.build()
    with compiling():
        if target == "c":
            kernel: Callable[..., Any] = tilelang.compile(
                program, target="c", execution_backend="cython", compile_flags=list(C_FLAGS)
            )
        else:
            kernel = tilelang.compile(program, target="cuda")
    return kernel
