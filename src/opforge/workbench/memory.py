"""Whether a shape that somebody asks for fits the memory of this machine, before anything is made of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import prod

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Operator, Workload
from opforge.core.definition.tensors import shapes_of
from opforge.core.language import units
from opforge.core.language.errors import UsageError

ORACLE_BYTES = 8
"""Of each element: the oracle holds its operands and results in float64."""


def bytes_to_verify(operator: Operator, workload: Workload, dtype: str) -> int:
    """The least that verifying a call holds at once: its tensors, and the oracle's in float64."""
    scalars = operator.scalar_values(workload.scalars)
    return sum(
        prod(shape) * (DTYPES[spec.dtype_for(dtype, scalars)].itemsize + ORACLE_BYTES)
        for spec in (*operator.inputs, *operator.outputs)
        for shape in shapes_of(spec, workload.axes)
    )


def ensure_fits(operator: Operator, workload: Workload, dtypes: Iterable[str] = ()) -> None:
    """Raises UsageError for a shape that this machine has no memory for in any of the dtypes (all where none are
    given).
    """
    asked = [dtype for dtype in operator.dtypes if dtype in (tuple(dtypes) or operator.dtypes)]
    needed = min((bytes_to_verify(operator, workload, dtype) for dtype in asked), default=0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise UsageError(
            f"{workload.name} needs {units.size(needed)} to be verified in float64, and this machine has "
            f"{units.size(memory)}. Choose smaller sizes."
        )
