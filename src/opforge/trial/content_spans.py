"""The tensors of a workload whose contents may change as a whole, while it is timed and when it is audited."""

from __future__ import annotations

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Operator
from opforge.core.evidence.timing_terms import OUT
from opforge.runner.worker.arena import Arena, Slot

MOST_BYTES = 1 << 28
"""Of larger inputs the sampler makes no copy."""

Spans = tuple[tuple[int, int, int], ...]
"""Offset in the arena, bytes, and the bytes that stay together (SampleRequest.spans)."""


def spans_of(arena: Arena, terms: str, operator: Operator) -> Spans:
    """The tensors that change as a whole (SampleRequest.spans): inputs of floating point without gaps, and outputs
    where calls write into them. () where no input can change so, or where a copy of them would be large.
    """
    together = _rows_mean_something(operator)
    inputs = [slot for slot in arena.slots if slot.role == "input" and _turns(slot)]
    if not inputs or sum(slot.span_bytes for slot in inputs) > MOST_BYTES:
        return ()
    outputs = [slot for slot in arena.slots if slot.role == "output" and slot.dense and slot.span_bytes]
    return (
        *((slot.offset, slot.span_bytes, _grain(slot, together)) for slot in inputs),
        *((slot.offset, slot.span_bytes, 0) for slot in outputs if terms == OUT),
    )


def _turns(slot: Slot) -> bool:
    """Whether rows of an input may change places: what is counted, or points somewhere, may have an order."""
    return slot.dense and slot.span_bytes > 0 and not DTYPES[slot.dtype].whole and not slot.becomes


def _rows_mean_something(operator: Operator) -> bool:
    """Whether rows of an input may be a forward's answer, of which laws hold: they sum to one, say."""
    return operator.gradient is None and bool(operator.laws or operator.follows)


def _grain(slot: Slot, together: bool) -> int:
    """Bytes of an element: of inputs that are turned by rows a kernel that keeps answers by the hash of a row knows
    each. Where rows stay `together`, of a row as it lies in memory, so that what holds for each row holds afterwards.
    """
    size = DTYPES[slot.dtype].itemsize
    if not together:
        return size
    row = size * next((n for n, step in zip(slot.shape, slot.strides, strict=True) if step == 1 and n > 1), 1)
    return row if row < slot.span_bytes else size
