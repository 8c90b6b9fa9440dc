"""Inspection: what a compiler made of an implementation for a target, read from the binary and the compiler's own
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opforge.core.definition.implementation import Config
from opforge.core.definition.shapes import AxisValue


@dataclass(frozen=True, kw_only=True)
class Residency:
    """How many blocks of a kernel one multiprocessor (compute unit) holds at once, and what keeps it from holding more.

    limited_by   any of threads, blocks, registers, shared; or "block too large": then it cannot be launched at all
    at_most      shared memory that is chosen at launch is not known here: fewer blocks may fit
    """

    blocks_per_unit: int
    active_warps: int
    max_warps: int
    limited_by: tuple[str, ...]
    at_most: bool

    @property
    def fraction(self) -> float:
        """Active warps over the most a unit can hold."""
        return self.active_warps / self.max_warps


@dataclass(frozen=True, kw_only=True)
class KernelUse:
    """What one compiled kernel uses. Registers per thread; memory in bytes; None where neither binary nor compiler
    says.

    shared_bytes          per block, without what the system reserves; None when it is chosen at launch
    threads               per block: as launched, or the most that the kernel was compiled for
    matrix_instructions   instructions of the matrix units in the code (not executed), by name: HMMA, HGMMA, UTCMMA,
                          mfma, …
    other_instructions    loads, stores, copies, barriers and multiply-adds in the code, by name
    local_instructions    loads and stores of local (AMD: scratch) memory in the code: spills, indexed arrays
    warnings              the compiler's, among them reasons why wgmma instructions were serialised
    """

    kernel: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    shared_bytes: int | None
    threads: int | None
    residency: Residency | None
    matrix_instructions: Mapping[str, int]
    other_instructions: Mapping[str, int]
    local_instructions: int
    warnings: tuple[str, ...]

    @property
    def spills(self) -> bool:
        """Whether values went to memory for want of registers, as far as the compiler or the code says."""
        if self.spill_store_bytes is None:
            return self.local_instructions > 0
        return self.spill_store_bytes + (self.spill_load_bytes or 0) > 0


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """One implementation compiled offline for one target, dtype and shape. `compile_s`: seconds spent in the
    compilers.
    """

    operator: str
    implementation: str
    backend: str
    target: str
    dtype: str
    axes: Mapping[str, AxisValue]
    config: Config
    compile_s: float
    kernels: tuple[KernelUse, ...]


@dataclass(frozen=True, kw_only=True)
class ForDevice:
    """What became of one implementation for one described device.

    found     None where it was not compiled: `reason` says why
    limiter   "memory" or "compute": which roof of the descriptor is the lower one for this call; "" where no rate is
              known
    least_s   the time under that roof, seconds
    resident_blocks   blocks that the whole device holds at once, of the kernel of which it holds fewest; None where
              that is not known
    """

    device: str
    target: str
    found: Inspection | None
    reason: str
    limiter: str
    least_s: float
    resident_blocks: int | None
