"""Launches a Triton kernel again without Triton's Python front: the compiled kernel, the grid and the numbers of the first call,
with other tensors of the same shapes. The front binds arguments and looks up a cache, which costs more than the launch itself."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

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
class Replay:
    """A launch that can be made again. `replay(inputs, outputs, scalars)` is False, and nothing was done, where it does not
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
    """The JIT functions of a module, and those of opforge's own modules that it has something from: a kernel may stand there."""
    from triton.runtime.jit import JITFunction

    modules, pending = {module.__name__: module}, [module]
    while pending:
        for value in vars(pending.pop()).values():
            name = getattr(value, "__module__", None)
            if isinstance(name, str) and name.startswith("opforge.") and name not in modules and name in sys.modules:
                modules[name] = sys.modules[name]
                pending.append(modules[name])
    # by identity: a function may be known by several names
    return list({id(value): value for one in modules.values() for value in vars(one).values() if isinstance(value, JITFunction)}.values())


_RECORDING = threading.Lock()


@contextmanager
def recording(module: ModuleType) -> Iterator[list[Recorded]]:
    """What the JIT functions of a module, and of the shared modules it builds on, launch inside the block. One block at a time: two
    operators may launch one function."""
    found: list[Recorded] = []

    def recorder(function: Any) -> Callable[..., Any]:
        original = function.run

        def run(*args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            kernel = original(*args, grid=grid, warmup=warmup, **kwargs)
            values = dict(zip(function.arg_names, args, strict=False)) | {name: value for name, value in kwargs.items() if name in function.arg_names}
            if not callable(grid) and len(values) == len(function.arg_names):
                found.append(Recorded(function=function, kernel=kernel, grid=tuple(grid), values=[values[name] for name in function.arg_names]))
            else:
                # a grid that is computed from the arguments, or a default: not worth following
                found.append(Recorded(function=None, kernel=None, grid=(), values=[]))
            return kernel

        return run

    with _RECORDING:
        functions = _launchable(module)
        for function in functions:
            function.run = recorder(function)
        try:
            yield found
        finally:
            for function in functions:
                del function.run


def replay_of(recorded: Sequence[Recorded], inputs: Sequence[Any], outputs: Sequence[Any], scalars: Mapping[str, Any]) -> Replay | None:
    """A Replay of the launches of one call; None unless there was exactly one, with contiguous tensors and numbers alone."""
    import torch
    import triton

    tensors = (*inputs, *outputs)
    if len(recorded) != 1 or recorded[0].function is None or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    (one,) = recorded
    if one.function.pre_run_hooks or one.function.launch_metadata is not None:
        return None
    slots: list[tuple[int, int]] = []
    for place, value in enumerate(one.values):
        if isinstance(value, torch.Tensor):
            which = next((number for number, tensor in enumerate(tensors) if tensor is value), None)
            if which is None:
                return None
            slots.append((place, which))
        elif not isinstance(value, bool | int | float | str | None):
            return None
    grid = (*one.grid, 1, 1)[:3]
    hooks = triton.knobs.runtime
    return Replay(
        launch=one.kernel.run,
        before=grid,
        after=(one.kernel.function, one.kernel.packed_metadata, None, hooks.launch_enter_hook, hooks.launch_exit_hook),
        values=tuple(None if isinstance(value, torch.Tensor) else value for value in one.values),
        slots=tuple(slots),
        aligned=tuple(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors),
        scalars=dict(scalars),
        device=tensors[0].get_device(),
        current_device=torch._C._cuda_getDevice,
        current_stream=torch._C._cuda_getCurrentRawStream,
    )


class Repeated:
    """A Triton implementation's `run` that follows its first call and repeats it afterwards, where that is all it did.

    A launcher that also calls PyTorch (it zeroes an output, or allocates a place to work in), launches several kernels or passes on
    anything but its tensors and numbers is run as it is, every time.
    """

    def __init__(self, run: Callable[[Sequence[Any], Sequence[Any], Mapping[str, Any]], None], module: ModuleType) -> None:
        self.run = run
        self.module = module
        self.replay: Replay | None = None
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
