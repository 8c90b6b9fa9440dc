"""What a worker may use, and which guards are up. All of them are, except in the red-team harness, which takes one away
at a time to show that it is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Guards:
    """The guards of the runner.

    files          a worker can write to its own scratch folder and nothing else (Landlock)
    reads          of users' files it can read those alone that its kernel's hash covers (Landlock, or mounts)
    exact_type     an output is a torch.Tensor and no subclass, which could compute when it is looked at
    exact_shape    an output has the promised shape, dtype and device, not one that broadcasts or casts
    no_alias       an output does not lie in an input's memory
    new_memory     a kernel that allocates returns other memory while its last result is still held
    blind_bind     inputs hold their values only after the kernel was bound
    snapshot       clocks and comparison functions are the same objects before and after
    trace          tensor operations are counted where the backend is not PyTorch
    ledger         where an interpreter runs a kernel, memory changes only while it runs; a C++ kernel's library needs
                   nothing that finds other code
    freeze         a worker is stopped whenever nothing is asked of it
    children       no process is left when the answer comes
    nonce          an answer repeats the number of its request
    own_processes  a worker has a process namespace of its own: it can name no sibling, no server and no parent
    filtered       system calls that no toolchain needs are refused (seccomp), and privileges given up
    read_only      the file system is read-only outside a worker's folders, and the store of records looks empty
    watchdog       a call that hangs is given up long before a compiler would be
    process_limits processors, priority and limits of server and worker are what they were before a worker is used
    equal_nodes    calls that are captured in one CUDA graph launch as much as each other
    device_names   what runs on a GPU while a Triton file is called are the kernels that it launched
    cold           before a cold sample, the cache's persisting part is given back and buffers rotate
    """

    files: bool = True
    reads: bool = True
    exact_type: bool = True
    exact_shape: bool = True
    no_alias: bool = True
    new_memory: bool = True
    blind_bind: bool = True
    snapshot: bool = True
    trace: bool = True
    ledger: bool = True
    freeze: bool = True
    children: bool = True
    nonce: bool = True
    own_processes: bool = True
    filtered: bool = True
    read_only: bool = True
    watchdog: bool = True
    process_limits: bool = True
    equal_nodes: bool = True
    device_names: bool = True
    cold: bool = True

    def without(self, *names: str) -> Guards:
        """These guards with some taken away."""
        return dataclasses.replace(self, **dict.fromkeys(names, False))

    def lowered(self) -> list[str]:
        """The names of those that are down, for a message."""
        return [item.name for item in dataclasses.fields(self) if not getattr(self, item.name)]

    @classmethod
    def from_lowered(cls, names: Iterable[str]) -> Guards:
        """The guards that a message describes."""
        return cls().without(*names)


ALL = Guards()

UNKNOWN_BYTES = 4 << 30
LEAST_BYTES = 1 << 30
"""What a compiler may need: with less, on a machine that others have filled, honest kernels would be called crashed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one worker may use.

    memory_bytes   anonymous memory of the worker and everything it started, beyond what it was born with (host memory;
                   the arena and device memory are not counted)
    processes      processes it may have started at one time
    file_bytes     the largest file it may write
    descriptors    open files
    flood_bytes    what it may write to stdout and stderr before the rest is thrown away
    """

    memory_bytes: int
    processes: int = 128
    file_bytes: int = 256 << 20
    descriptors: int = 1024
    flood_bytes: int = 1 << 20


def default_limits() -> Limits:
    """Half of the memory that is available now, to this machine and to its control group: at most 8 GiB where that is
    less than 64 GiB, at least LEAST_BYTES.
    """
    from opforge.machine.host_hardware import available_bytes

    available = available_bytes() or UNKNOWN_BYTES
    return Limits(
        memory_bytes=max(LEAST_BYTES, available // 2 if available > 64 << 30 else min(available // 2, 8 << 30))
    )
