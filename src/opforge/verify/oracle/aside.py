"""What judging a large workload holds and does not need at the moment: it waits in the host's memory.

Of n elements an expected value, a bound and what is typical are 24 n bytes, and an audit has three contents of one
workload: of 2^30 elements that was 77 GB of a GPU that two kernels of 13 GB were to be judged on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T", bound=Any)

ASIDE = 2**32
"""Bytes of inputs in float64 from which they wait: they are asked for again only where something is wrong."""

SHARE = 1 / 16
"""Of a device's memory: what expectations take from which they wait. They are asked for whenever something is judged;
of 26 GB that takes 4 s there, and 26 s to be put away (an H200's host gives 1 GB of new pages a second)."""

RESERVE = 1.25
"""So many times their memory is free on the host, or they stay where they are."""


def waits(place: Any, size: int) -> bool:
    """Whether expectations of `size` bytes, worked out on the torch.device `place`, wait in the host's memory."""
    import torch

    from opforge.machine import host_hardware

    if place.type == "cpu":
        return False
    _, total = torch.get_device_module(place).mem_get_info()
    return size >= SHARE * total and host_hardware.available_bytes() >= RESERVE * size


def empty_on_host(shape: Sequence[int], dtype: Any) -> Any:
    """A tensor whose memory goes back to the system with it: a heap keeps what is freed in its middle."""
    import torch

    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(tuple(shape))


def on_host(tensor: Any) -> Any:
    """A copy of a device's tensor in the host's memory; what is there stays as it is."""
    if tensor.device.type == "cpu":
        return tensor
    return empty_on_host(tensor.shape, tensor.dtype).copy_(tensor)


def widened(tensor: Any) -> Any:
    """In float64; whole numbers stay what they are: an index in float64 is no index."""
    import torch

    return tensor.detach().to(torch.float64 if tensor.is_floating_point() else tensor.dtype)


class Aside(Mapping[str, Any]):
    """Tensors that wait in the host's memory as they are; each comes back, widened, while somebody has it."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.places = {name: tensor.device for name, tensor in tensors.items()}
        # what is here may be changed where it lies
        self.kept = {
            name: tensor.detach().clone() if tensor.device.type == "cpu" else on_host(tensor.detach())
            for name, tensor in tensors.items()
        }

    def __getitem__(self, name: str) -> Any:
        return widened(self.kept[name].to(self.places[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)


class Waiting(Sequence[T]):
    """Dataclasses whose tensors wait in the host's memory; those of one come back to `place` while somebody has it."""

    def __init__(self, items: Sequence[T], place: Any) -> None:
        self.place = place
        self.kept = tuple(_moved(item, on_host) for item in items)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        if isinstance(at, slice):
            return Waiting(self.kept[at], self.place)
        return _moved(self.kept[at], lambda tensor: tensor.to(self.place))

    def __len__(self) -> int:
        return len(self.kept)


def _moved(item: T, move: Any) -> T:
    import torch

    found = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return dataclasses.replace(
        item, **{name: move(value) for name, value in found.items() if isinstance(value, torch.Tensor)}
    )
