"""Whether a kernel computes with the backend it is written for, or has PyTorch compute for it."""

from __future__ import annotations

from collections.abc import Mapping

from opforge.runner.worker.data_flow import moves


def library_calls(operations: Mapping[str, int]) -> tuple[str, ...]:
    """The operations among these (names as PyTorch's dispatcher gives them) that compute, each with its count.

    >>> library_calls({"aten.empty.memory_format": 1, "aten.mm.default": 2})
    ('aten.mm.default (2 times)',)
    """
    calls = {name: count for name, count in operations.items() if name.startswith("aten.") and not moves(name)}
    return tuple(f"{name} ({count} time{'s' if count != 1 else ''})" for name, count in sorted(calls.items()))
