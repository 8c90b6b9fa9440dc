"""Launches a Triton kernel again without Triton's Python front: the compiled kernel, the grid and the numbers of one
call, with other tensors of the same shapes. The front binds arguments and looks up a cache, which costs more than the
launch itself.

There are two ways. `bound` calls the driver from C++ (device/include/opforge/abi/triton_launch.cpp), for tensors of
just one class: no Python is between the look-up of the call and the launch. `Repeated` calls Triton's own launcher from
Python, where there is no compiler or the class is not so simple.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from opforge.backends import native

ALIGNMENT = 16
"""Triton compiles one kernel for pointers that are multiples of this, and another for the rest."""


@dataclass
class Recorded:
    """One launch: the JIT function, what it compiled to, its grid, and its arguments in the order of its parameters."""

    function: Any
    kernel: Any
    grid: tuple[int, ...]
    values: list[Any]


@dataclass(frozen=True)
class ReplayedLaunch:
    """A launch that can be made again. `replay(inputs, outputs, scalars)` is False, and nothing was done, where it does
    not
    apply: other scalars, strides, alignment or another current device than in the recorded call."""

    launch: Callable[..., Any]
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    values: tuple[Any, ...]
    slots: tuple[tuple[int, int], ...]
    aligned: tuple[bool, ...]
    scalars: Mapping[str, Any]
    device: int
    current_device: Callable[[], int]
    current_stream: Callable[[int], int]

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, Any]) -> bool:
        if scalars != self.scalars or self.current_device() != self.device:
            return False
        tensors = (*inputs, *outputs)
        for tensor, aligned in zip(tensors, self.aligned, strict=True):
            if (tensor.data_ptr() % ALIGNMENT == 0) is not aligned or not tensor.is_contiguous():
                return False
        values = list(self.values)
        for place, which in self.slots:
            values[place] = tensors[which]
        self.launch(*self.before, self.current_stream(self.device), *self.after, *values)
        return True


def _launchable(module: ModuleType) -> list[Any]:
    """The JIT functions of a module, and those of opforge's own modules that it has something from: a kernel may stand
    there.
    """
    from triton.runtime.jit import JITFunction

    modules, pending = {module.__name__: module}, [module]
    while pending:
        for value in vars(pending.pop()).values():
            name = getattr(value, "__module__", None)
            if isinstance(name, str) and name.startswith("opforge.") and name not in modules and name in sys.modules:
                modules[name] = sys.modules[name]
                pending.append(modules[name])
    # by identity: a function may be known by several names
    return list(
        {
            id(value): value
            for one in modules.values()
            for value in vars(one).values()
            if isinstance(value, JITFunction)
        }.values()
    )


_RECORDING = threading.Lock()


@contextmanager
def recording(module: ModuleType, *, launched: bool = True) -> Iterator[list[Recorded]]:
    """What the JIT functions of a module, and of the shared modules it builds on, launch inside the block; or
    (`launched` False) would: they
    are compiled, and nothing runs. One block at a time: two operators may launch one function."""
    launches: list[Recorded] = []

    def recorder(function: Any) -> Callable[..., Any]:
        original = function.run

        def run(*args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            kernel = original(*args, grid=grid, warmup=warmup or not launched, **kwargs)
            values = dict(zip(function.arg_names, args, strict=False)) | {
                name: value for name, value in kwargs.items() if name in function.arg_names
            }
            if not callable(grid) and len(values) == len(function.arg_names):
                launches.append(
                    Recorded(
                        function=function,
                        kernel=kernel,
                        grid=tuple(grid),
                        values=[values[name] for name in function.arg_names],
                    )
                )
            else:
                # a grid that is computed from the arguments, or a default: not worth following
                launches.append(Recorded(function=None, kernel=None, grid=(), values=[]))
            return kernel

        return run

    with _RECORDING:
        functions = _launchable(module)
        for function in functions:
            function.run = recorder(function)
        try:
            yield launches
        finally:
            for function in functions:
                del function.run


def replay_of(
    recorded: Sequence[Recorded], inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, Any]
) -> ReplayedLaunch | None:
    """A ReplayedLaunch of the launches of one call; None unless there was exactly one, with contiguous tensors and
    numbers alone.
    """
    import torch
    import triton

    from opforge.backends import torch_private

    tensors = (*inputs, *outputs)
    if len(recorded) != 1 or recorded[0].function is None or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    (one,) = recorded
    if one.function.pre_run_hooks or one.function.launch_metadata is not None:
        return None
    slots: list[tuple[int, int]] = []
    addresses = {tensor.data_ptr() for tensor in tensors} - {0}
    for place, value in enumerate(one.values):
        if isinstance(value, torch.Tensor):
            which = next((number for number, tensor in enumerate(tensors) if tensor is value), None)
            if which is None:
                return None
            slots.append((place, which))
        elif not isinstance(value, bool | int | float | str | None) or value in addresses:
            return None
    grid = (*one.grid, 1, 1)[:3]
    hooks = triton.knobs.runtime
    return ReplayedLaunch(
        launch=one.kernel.run,
        before=grid,
        after=(one.kernel.function, one.kernel.packed_metadata, None, hooks.launch_enter_hook, hooks.launch_exit_hook),
        values=tuple(None if isinstance(value, torch.Tensor) else value for value in one.values),
        slots=tuple(slots),
        aligned=tuple(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors),
        scalars=dict(scalars),
        device=tensors[0].get_device(),
        current_device=torch_private.current_gpu,
        current_stream=torch_private.current_stream,
    )


LAUNCHERS = ("3.6.",)
"""Versions of Triton whose way to launch is known here: which parameters a kernel has behind those of its signature."""
_SCRATCH = 2
"""Those: two addresses of scratch memory, null where a kernel needs none."""
_FLOATS = {"fp32": ctypes.c_float, "fp64": ctypes.c_double}
_WHOLE = ("i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64")


def parameters_of(recorded: Recorded, tensors: Sequence[Any]) -> list[tuple[int, int]] | None:
    """The parameters of a compiled kernel: (which of `tensors`, 0), or (-1, its bits). None where one is neither a
    tensor of these nor a number,
    or is an address in a number."""
    signature = recorded.kernel.src.signature
    parameters: list[tuple[int, int]] = []
    addresses = {tensor.data_ptr() for tensor in tensors} - {0}
    for name, value in zip(recorded.function.arg_names, recorded.values, strict=True):
        kind = signature.get(name)
        if kind == "constexpr":
            # compiled in: constants, ones, and arguments that are None
            continue
        which = next((number for number, tensor in enumerate(tensors) if tensor is value), None)
        if isinstance(kind, str) and kind.startswith("*") and which is not None:
            parameters.append((which, 0))
        elif kind in _WHOLE and isinstance(value, int) and value not in addresses:
            parameters.append((-1, ctypes.c_int64(value).value))
        elif kind in _FLOATS and isinstance(value, int | float):
            parameters.append((-1, int.from_bytes(bytes(_FLOATS[kind](value)), sys.byteorder, signed=True)))
        else:
            return None
    return [*parameters, *[(-1, 0)] * _SCRATCH]


@dataclass(frozen=True)
class Driver:
    """Addresses of the two functions of the CUDA driver that a launch calls."""

    launch: int
    current_device: int


def cuda_driver() -> Driver:
    """The driver that is loaded here. Raises OSError where there is none."""
    library = ctypes.CDLL("libcuda.so.1")
    launch, current = (
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in ("cuLaunchKernelEx", "cuCtxGetDevice")
    )
    assert launch is not None and current is not None
    return Driver(launch, current)


def bound(
    run: Callable[..., None],
    module: ModuleType,
    tensors: Sequence[Any],
    shapes: Sequence[Sequence[int]],
    compiler: str,
    driver: Callable[[], Driver] = cuda_driver,
) -> Callable[..., bool] | None:
    """A launch for one class of tensors: see protocol.Kernel. `run(*tensors)` is the launcher with its parameters; it
    is called once, to see what it would launch. None unless that is one kernel with these tensors and numbers alone.

    Where another device is current, or an address is no multiple of 16 (for which Triton compiles another kernel), the
    launch is not made. Nor is it while something listens to Triton's launches: a profiler hears of all of them.
    """
    import torch
    import triton

    from opforge.backends import torch_private

    if not triton.__version__.startswith(LAUNCHERS) or torch_private.current_gpu() != tensors[0].get_device():
        return None
    # nothing is read or written: where an address is not aligned, another tensor stands for it
    aligned = [tensor if tensor.data_ptr() % ALIGNMENT == 0 else torch.empty_like(tensor) for tensor in tensors]
    views = [tensor.view(tuple(shape)) for tensor, shape in zip(aligned, shapes, strict=True)]
    with _watching() as called, recording(module, launched=False) as recorded:
        run(*views)
    if called or len(recorded) != 1 or recorded[0].function is None:
        return None
    (one,) = recorded
    hooks = triton.knobs.runtime
    listeners = (hooks.launch_enter_hook, hooks.launch_exit_hook)
    if (
        one.function.pre_run_hooks
        or one.function.launch_metadata is not None
        or not all(hasattr(chain, "calls") for chain in listeners)
    ):
        return None
    kernel = one.kernel.result() if hasattr(one.kernel, "result") else one.kernel
    if kernel is None or kernel.metadata.target.backend != "cuda" or not _plain(kernel.metadata) or 0 in one.grid:
        return None
    parameters = parameters_of(Recorded(one.function, kernel, one.grid, one.values), views)
    library = native.helper("triton_launch.cpp", compiler, _driver_includes())
    # `run` is there once the kernel is loaded onto the device
    if parameters is None or library is None or kernel.run is None:
        return None
    warps, blocks, shared = kernel.packed_metadata[:3]
    here, grid = driver(), (*one.grid, 1, 1)[:3]
    again = library.launcher(
        here.launch,
        here.current_device,
        kernel.function,
        *grid,
        32 * warps,
        shared,
        blocks,
        *(part for parameter in parameters for part in parameter),
    )
    launch = native.bound(again, aligned, shapes, (), compiler, ALIGNMENT)
    if launch is None:
        return None
    entering, leaving = listeners

    def launched(*given: Any) -> bool:
        return not (entering.calls or leaving.calls) and launch(*given)

    # what was compiled lives as long as the launch
    launched.kernel = kernel  # type: ignore[attr-defined]
    return launched


def _plain(metadata: Any) -> bool:
    """Whether a kernel needs nothing of its launcher but grid, threads, shared memory and clusters of a
    portable size.
    """
    scratch = metadata.global_scratch_size or metadata.profile_scratch_size
    return not (scratch or metadata.launch_pdl or metadata.launch_cooperative_grid) and metadata.num_ctas <= 8


def build_launcher(compiler: str) -> None:
    """Compile what `bound` launches with."""
    native.helper_path(native.CALLER, compiler)
    native.helper_path("triton_launch.cpp", compiler, _driver_includes())


def _driver_includes() -> tuple[str, ...]:
    """Where cuda.h is: Triton brings its own."""
    import triton.backends.nvidia

    return tuple(f"-I{Path(path) / 'include'}" for path in triton.backends.nvidia.__path__)


class Repeated:
    """A Triton implementation's `run` that follows its first call and repeats it afterwards, where that is all it did.

    A launcher that also calls PyTorch (it zeroes an output, or allocates a place to work in), launches several kernels
    or passes on anything but its tensors and numbers is run as it is, every time.
    """

    def __init__(
        self, run: Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], None], module: ModuleType
    ) -> None:
        self.run = run
        self.module = module
        self.replay: ReplayedLaunch | None = None
        self.followed = False

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, Any]) -> None:
        if self.replay is not None and self.replay(inputs, outputs, scalars):
            return
        if self.followed or len({id(tensor) for tensor in (*inputs, *outputs)}) < len(inputs) + len(outputs):
            # one tensor in two places says nothing of which place a parameter came from: such a call is not followed
            self.run(inputs, outputs, scalars)
            return
        self.followed = True
        with _watching() as called, recording(self.module) as recorded:
            self.run(inputs, outputs, scalars)
        if not called:
            self.replay = replay_of(recorded, inputs, outputs, scalars)


@contextmanager
def _watching() -> Iterator[list[Any]]:
    """The PyTorch operations that are called inside the block."""
    from torch.utils._python_dispatch import TorchDispatchMode

    called: list[Any] = []

    class Watch(TorchDispatchMode):  # type: ignore[misc, unused-ignore]  # torch leaves it untyped
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function)
            return function(*args, **(kwargs or {}))

    with Watch():
        yield called
