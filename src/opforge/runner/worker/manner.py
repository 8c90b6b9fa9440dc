"""How the inputs of a workload lie in memory, as the model of times asks for it."""

from __future__ import annotations

from collections.abc import Mapping

from opforge.core.definition.call_form import formed, layouts_of
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.definition.shapes import Axes, collapsed_shape
from opforge.roofline.manners import Manner, manner_of
from opforge.runner.worker.arena import strides_for


def manner_as(operator: Operator, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue], layout: str) -> Manner:
    """How the inputs of a workload lie, whose layout is in words (core.operator.Workload)."""
    words = layouts_of(operator, {**axes, **scalars}, layout)
    found = []
    for spec in formed(operator, {**axes, **scalars}).inputs:
        shape = collapsed_shape(spec.shape, axes)
        strides, skip = strides_for(words[spec.name], shape)
        found.append((shape, strides, DTYPES[spec.dtype_for(dtype, scalars)].itemsize, skip == 0))
    return manner_of(found)
