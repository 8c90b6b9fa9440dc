"""Definitions and implementations as a worker knows them: read before it is shut in, and not again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator
from opforge.registry import Home, Registry


class ReadOnce:
    """What was read of homes. A worker that is shut in sees no more of a home than its kernel's own files."""

    def __init__(self) -> None:
        self.known: dict[tuple[tuple[str, ...], str, str], tuple[Operator, Implementation]] = {}

    def of(self, homes: Sequence[str], operator: str, implementation: str) -> tuple[Operator, Implementation]:
        """An operator and one of its implementations."""
        key = (tuple(homes), operator, implementation)
        if key not in self.known:
            registry = Registry(tuple(Home(Path(home), "parent") for home in homes))
            self.known[key] = registry.operator(operator), registry.implementation(operator, implementation)
        return self.known[key]
