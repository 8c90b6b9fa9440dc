"""Record the Triton launches a host function makes, and compile them without a GPU.

``capture_launches`` runs a plain host-side ``launch(x, out)`` function with
tensors on the ``meta`` (or ``cpu``) device.  A stand-in driver answers for the
missing GPU and one method, ``JITFunction._do_compile``, is replaced for the
duration of the call, so that Triton itself binds the arguments, specialises
them, parses the options and evaluates the grid; nothing is compiled or run.
``compile_offline`` then turns each record into IR, assembly and a binary.

Written against Triton 3.6.0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler import ASTSource, CompiledKernel, compile as triton_compile, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

TARGETS: dict[str, GPUTarget] = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""Targets checked to compile offline with Triton 3.6.0."""


@dataclass(frozen=True)
class RecordedLaunch:
    """One kernel launch: what Triton would have compiled, and over which grid."""

    fn: JITFunction[Any]
    signature: dict[str, str]
    """Argument name to type, ``"constexpr"`` for compile-time values."""
    constexprs: dict[tuple[int, ...], Any]
    """Argument position to compile-time value; includes integers equal to 1."""
    attrs: dict[tuple[int, ...], list[Any]]
    """Argument position to facts such as ``["tt.divisibility", 16]``."""
    options: dict[str, Any]
    """Backend options that differ from the target's defaults (num_warps, ...)."""
    grid: tuple[int, int, int]
    target: GPUTarget
    config: dict[str, Any] = field(default_factory=dict)
    """The autotuner configuration, where the kernel is autotuned."""

    @property
    def name(self) -> str:
        """The kernel's Python name."""
        return str(self.fn.__name__)


@dataclass(frozen=True)
class Artefacts:
    """What the compiler produced for one launch."""

    name: str
    target: GPUTarget
    asm: dict[str, str | bytes]
    """Stage name (ttir, ttgir, llir, ptx, cubin, amdgcn, hsaco) to content."""
    shared_bytes: int
    """Shared memory per block as reserved at launch (dynamic on NVIDIA)."""
    num_warps: int
    tmem_columns: int
    metadata: dict[str, Any]

    @property
    def binary(self) -> bytes:
        """The cubin or hsaco."""
        data = self.asm["cubin" if self.target.backend == "cuda" else "hsaco"]
        assert isinstance(data, bytes)
        return data

    @property
    def threads_per_block(self) -> int:
        """Threads in one block, warp-specialised worker warps included."""
        warps = self.metadata.get("num_warps_total") or self.num_warps
        return int(warps) * int(self.target.warp_size)


class OfflineDriver(DriverBase):
    """A driver for a GPU that is not there: knows its target, can launch nothing."""

    _devices = itertools.count()

    def __init__(self, target: GPUTarget) -> None:
        super().__init__()
        self._target = target
        # A device id of its own keeps JITFunction.device_caches from mixing targets.
        self._device = f"offline:{target.backend}:{target.arch}:{next(self._devices)}"

    @classmethod
    def is_active(cls) -> bool:
        """Never picked by Triton on its own."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Unused: no launcher is built."""
        raise NotImplementedError

    def get_current_target(self) -> GPUTarget:
        """The target that is compiled for."""
        return self._target

    def get_active_torch_device(self) -> Any:
        """The device to allocate on, for code that asks Triton for it."""
        import torch

        return torch.device("meta")

    def get_current_device(self) -> str:
        """A made-up id, unique to this driver."""
        return self._device

    def set_current_device(self, device: Any) -> None:
        """Accepted and ignored."""

    def get_current_stream(self, device: Any = None) -> int:
        """The null stream."""
        return 0

    def get_device_interface(self) -> Any:
        """Unused: nothing is timed."""
        raise NotImplementedError

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        """Unused: autotuned kernels are recorded once per configuration."""
        raise NotImplementedError


@contextmanager
def offline_driver(target: GPUTarget) -> Iterator[OfflineDriver]:
    """Make an :class:`OfflineDriver` Triton's active driver for a while."""
    previous = driver._active  # driver.active would look for a GPU
    stand_in = OfflineDriver(target)
    driver.set_active(stand_in)
    try:
        yield stand_in
    finally:
        driver._active = previous


class _Recorder:
    """Stands for the compiled kernel; Triton's own ``run`` hands it the grid."""

    function = None
    packed_metadata = None

    def __init__(self, record: Callable[[tuple[int, int, int]], None]) -> None:
        self._record = record

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, grid_0: int, grid_1: int, grid_2: int, *_: Any) -> None:
        self._record((int(grid_0), int(grid_1), int(grid_2)))


def _changed_options(options: Any, target: GPUTarget) -> dict[str, Any]:
    """The options whose value is not the target's default."""
    given = vars(options)
    plain = vars(make_backend(target).parse_options({}))
    return {k: v for k, v in given.items() if k not in plain or plain[k] != v}


def capture_launches(
    function: Callable[..., Any],
    *args: Any,
    target: GPUTarget = TARGETS["sm_90"],
    **kwargs: Any,
) -> list[RecordedLaunch]:
    """Call ``function(*args, **kwargs)`` and return the Triton launches it makes.

    Pass tensors of the real shapes and strides on ``device="meta"``: they need no
    memory and count as 16-byte aligned.  Grids may be callables; an autotuned
    kernel is recorded once for every configuration left after pruning.  Kernels
    defined under ``TRITON_INTERPRET=1`` cannot be captured (``TypeError``).
    """
    launches: list[RecordedLaunch] = []
    seen: list[JITFunction[Any]] = []
    config: dict[str, Any] = {}

    def do_compile(
        self: JITFunction[Any],
        key: str,
        signature: Mapping[str, str],
        device: Any,
        constexprs: Mapping[tuple[int, ...], Any],
        options: Any,
        attrs: Mapping[tuple[int, ...], list[Any]],
        warmup: bool,
    ) -> _Recorder:
        seen.append(self)
        changed = _changed_options(options, target)
        chosen = dict(config)

        def record(grid: tuple[int, int, int]) -> None:
            launches.append(
                RecordedLaunch(self, dict(signature), dict(constexprs), dict(attrs), changed, grid, target, chosen)
            )

        return _Recorder(record)

    def run_every_config(self: Autotuner, *args: Any, **kwargs: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for candidate in self.prune_configs(kwargs):
            chosen = candidate.all_kwargs()
            if candidate.pre_hook is not None:
                candidate.pre_hook({**self.nargs, **kwargs, **chosen})
            config.clear()
            config.update(chosen)
            try:
                self.fn.run(*args, **kwargs, **chosen)
            finally:
                config.clear()

    def refuse(self: InterpretedFunction[Any], *_: Any, **__: Any) -> None:
        raise TypeError(f"{self.__name__} was defined under TRITON_INTERPRET=1: it cannot be captured")

    with (
        offline_driver(target) as stand_in,
        mock.patch.object(JITFunction, "_do_compile", do_compile),
        mock.patch.object(Autotuner, "run", run_every_config),
        mock.patch.object(InterpretedFunction, "run", refuse),
    ):
        try:
            function(*args, **kwargs)
        finally:
            for fn in seen:
                fn.device_caches.pop(stand_in.get_current_device(), None)
    return launches


def compile_offline(launch: RecordedLaunch, target: GPUTarget | None = None) -> Artefacts:
    """Compile a captured launch for ``target`` (default: the one it was captured for).

    The attributes and options are those of the capture's backend, so only the
    architecture may differ (sm_80 to sm_90); capture again for another vendor.
    """
    target = target or launch.target
    if target.backend != launch.target.backend:
        raise ValueError(f"captured for {launch.target.backend}, not {target.backend}: capture again")
    source_type = GluonASTSource if launch.fn.is_gluon() else ASTSource
    source = source_type(launch.fn, launch.signature, launch.constexprs, launch.attrs)
    kernel = triton_compile(source, target=target, options=launch.options)
    return _artefacts(kernel, target)


def _artefacts(kernel: CompiledKernel, target: GPUTarget) -> Artefacts:
    metadata = kernel.metadata._asdict()
    return Artefacts(
        name=kernel.name,
        target=target,
        asm=dict(kernel.asm),
        shared_bytes=int(metadata["shared"]),
        num_warps=int(metadata["num_warps"]),
        tmem_columns=int(metadata.get("tmem_size") or 0),
        metadata=metadata,
    )
