"""Whether a kernel computes with the backend it is written for, or has PyTorch compute for it."""

from __future__ import annotations

from collections.abc import Mapping

# what a launcher may ask of PyTorch: memory, views, moving and converting data, questions about a tensor
_MOVES = """
empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like ones ones_like full full_like new_zeros
new_ones new_full fill_ zero_ view
_unsafe_view reshape as_strided transpose permute t unsqueeze squeeze expand slice select narrow split chunk unbind
alias detach clone copy_ _to_copy
contiguous lift_fresh resize_ set_ flatten unflatten _reshape_alias view_as_real is_pinned pin_memory _pin_memory
record_stream _local_scalar_dense
item constant_pad_nd pad cat stack _has_compatible_shallow_copy_type is_same_size stride size numel
"""
MOVES = frozenset(_MOVES.split())


def library_calls(operations: Mapping[str, int]) -> tuple[str, ...]:
    """The operations among these (names as PyTorch's dispatcher gives them) that compute, each with its count.

    >>> library_calls({"aten.empty.memory_format": 1, "aten.mm.default": 2})
    ('aten.mm.default (2 times)',)
    """
    calls = {
        name: count
        for name, count in operations.items()
        if name.startswith("aten.") and name.split(".")[1] not in MOVES
    }
    return tuple(f"{name} ({count} time{'s' if count != 1 else ''})" for name, count in sorted(calls.items()))
