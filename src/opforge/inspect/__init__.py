"""What compilers make of kernels, for targets that need not be here."""

from opforge.core.inspection import Inspection as Inspection, KernelUse as KernelUse, Residency as Residency
from opforge.inspect.offline import inspect_implementation as inspect_implementation
