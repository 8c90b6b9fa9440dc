"""DeviceSpec: a chip as data, so that kernels can be compiled, judged and re-tuned for one that is not on the desk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BOUNDS = (
    "shared_bytes_per_block",
    "shared_bytes_per_unit",
    "registers_per_unit",
    "threads_per_block",
    "threads_per_unit",
    "blocks_per_unit",
    "vector_bytes",
    "warp_size",
    "units",
    "cache_bytes",
    "capabilities",
)
"""What of a descriptor the limits of a space may name."""

SAME_CODE = (
    "kind",
    "target",
    "units",
    "warp_size",
    "registers_per_unit",
    "shared_bytes_per_unit",
    "shared_bytes_per_block",
    "threads_per_unit",
    "blocks_per_unit",
)
"""What two devices share that run the same code in the same waves: their memories and clocks may differ."""


ONE_THREAD = "_one_thread"
"""How the name of a processor's ceiling ends that is of a single thread, in its own processor time."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One measured limit of a machine: bytes/s or FLOP/s, with when and how it was measured."""

    name: str
    value: float
    unit: str
    measured_at: str
    how: str


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """A device descriptor. Bandwidth in bytes/s, arithmetic in FLOP/s by dtype, memory in bytes.

    nominal_*   the vendor's sheet (`source` says which); measured figures live beside it as `ceilings`
    target      what compilers call it: "sm_90a", "gfx942", "ascend910b", "host"
    shared_bytes_per_block   the most that a block may ask for (CUDA's opt-in limit)
    threads_per_block        the most threads that a block may have: 1024 on every GPU of today
    """

    name: str
    kind: str
    target: str
    units: int
    warp_size: int
    vector_bytes: int
    registers_per_unit: int
    shared_bytes_per_unit: int
    shared_bytes_per_block: int
    threads_per_unit: int
    blocks_per_unit: int
    cache_bytes: int
    memory_bytes: int
    nominal_bytes_per_s: float
    nominal_flops_per_s: Mapping[str, float]
    capabilities: tuple[str, ...]
    source: str
    threads_per_block: int = 1024
    ceilings: tuple[Ceiling, ...] = ()
    matches: tuple[str, ...] = field(default_factory=tuple)

    def ceiling(self, name: str) -> Ceiling | None:
        """A measured ceiling by name ("copy", "matrix_bfloat16", …), or None when it was not measured."""
        return next((ceiling for ceiling in self.ceilings if ceiling.name == name), None)

    def is_sibling_of(self, other: DeviceSpec) -> bool:
        """Whether compilers make the same code for both, and as many blocks of it run at once: an H100 beside an H200.
        A processor has none: its kernels are compiled for the very one.
        """
        return (
            self.kind != "cpu"
            and self.name != other.name
            and all(getattr(self, name) == getattr(other, name) for name in SAME_CODE)
        )

    def bounds(self) -> dict[str, int | tuple[str, ...]]:
        """What limits of kernels may name, in bytes and numbers, and the capabilities; what is not known (0, none) is
        left out.
        """
        return {name: value for name in BOUNDS if (value := getattr(self, name))}
