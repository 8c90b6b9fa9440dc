"""What compilers make of kernels, for targets that need not be here."""

from opforge.core.evidence.inspection import (
    ForDevice as ForDevice,
    Inspection as Inspection,
    KernelUse as KernelUse,
    Residency as Residency,
)
from opforge.inspect.binaries import on_device as on_device
from opforge.inspect.for_devices import (
    ALL as ALL,
    cannot_start as cannot_start,
    inspect_for_devices as inspect_for_devices,
    ruled_out as ruled_out,
)
from opforge.inspect.offline import inspect_implementation as inspect_implementation
