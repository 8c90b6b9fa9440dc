"""Whether what runs on a GPU while a kernel is called is that kernel's own: by the names that the profiler sees, on all
streams and from all threads.

A file written for Triton or CUDA may have PyTorch or cuBLAS compute from a thread, from a graph that was captured
before, or through a symbol that it found. Python sees none of it, and the device runs all of it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from opforge.backends import native
from opforge.backends.cuda import Cuda
from opforge.core.definition.implementation import Config, Implementation
from opforge.runner.worker.device_clocks import device_work
from opforge.runner.worker.dispatch_trace import LAUNCHES, traced

ASIDE = ("Memcpy", "Memset")
ONE_IN = 8
"""Of the calls after a worker's first, one in so many is looked at: nobody knows which."""
MOST_LOOKS = 4
"""Each look starts and ends a trace, which takes longer than a call: a verification of a hundred calls is not to take
twice its time.
"""

_NESTED = re.compile(r"<[^<>]*>|\([^()]*\)")


def identifier(name: str) -> str:
    """The plain name of a kernel, of what the profiler calls it.

    >>> identifier("void opforge::add_up<Shape<(int)128, (bool)1>, float>(float const*, int)")
    'add_up'
    >>> identifier("(anonymous namespace)::twice(float const*, float*, int)"), identifier("double_kernel")
    ('twice', 'double_kernel')
    """
    name = name.replace("(anonymous namespace)::", "")
    while (shorter := _NESTED.sub("", name)) != name:
        name = shorter
    return name.strip().split(" ")[-1].split("::")[-1]


def foreign(names: Sequence[str], own: Collection[str] | bytes, moved: int) -> list[str]:
    """What ran besides a file's own kernels, as sentences.

    names   of all that ran on the device during one call, in order
    own     names of the kernels that were launched, or the library that holds them
    moved   operations of PyTorch that only make or move data: each may run a kernel, a copy or a fill
    """
    mine = [name for name in names if _holds(own, identifier(name))]
    others = [name for name in names if name not in mine]
    kernels = [name for name in others if not name.startswith(ASIDE)]
    return [f"the device ran {name[:80]}" for name in dict.fromkeys(kernels)] if len(others) > moved else []


def _holds(own: Collection[str] | bytes, name: str) -> bool:
    return name.encode() in own if isinstance(own, bytes) else name in own


class DeviceWatch:
    """Looks at some calls in a worker: the first, and then one in ONE_IN.

    implementation, config   what the worker runs; only files for Triton and CUDA say which kernels are theirs
    """

    def __init__(self, implementation: Implementation, config: Config, device: str) -> None:
        self.triton = implementation.backend == "triton"
        self.symbols: bytes | None = None
        self.calls = self.looked = 0
        if implementation.backend == "cuda":
            # kernels are registered by name: their names stand in the library
            toolchain = Cuda().toolchain_for(implementation, device)
            self.symbols = native.library(implementation, config, toolchain).path.read_bytes()

    def looks(self) -> bool:
        """Whether the call that comes is looked at."""
        self.calls += 1
        if (not self.triton and self.symbols is None) or self.looked == MOST_LOOKS:
            return False
        looks = self.calls == 1 or secrets.randbelow(ONE_IN) == 0
        self.looked += looks
        return looks

    def run(
        self, call: Callable[[], object], results: Callable[[], Mapping[str, Any]]
    ) -> tuple[dict[str, int], list[str]]:
        """Make the call: its tensor operations, and what ran that is not the file's own."""
        launched: set[str] = set()
        operations: dict[str, int] = {}
        names = [
            name
            for _, _, name in device_work(lambda: operations.update(traced(call, launched=launched, results=results)))
        ]
        moved = sum(count for name, count in operations.items() if name != LAUNCHES)
        return operations, foreign(names, launched if self.triton else self.symbols or b"", moved)
