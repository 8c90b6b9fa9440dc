"""What evidence is held against on this machine: today's sources, what they say to the compiler, and the toolchain."""

from __future__ import annotations

from opforge.backends.program_hash import program_sha256
from opforge.backends.shared_code import source_sha256
from opforge.machine.versions import versions
from opforge.registry import Registry
from opforge.store import Installation


def installation_of(registry: Registry, operator: str, device: str) -> Installation:
    """The Installation of an operator for a model of device ("nvidia-h200"), which need not be the one that is here."""
    implementations = {implementation.name: implementation for implementation in registry.implementations(operator)}

    def code_of(name: str) -> str:
        return program_sha256(implementations[name])

    return Installation(
        device=device,
        sources={name: source_sha256(item.source) for name, item in implementations.items()},
        versions=versions(),
        code_of=code_of,
    )


def toolchain_of(device: str) -> Installation:
    """The toolchain alone, with no sources: for evidence that came with the package and is not asked for a choice."""
    return Installation(device=device, sources={}, versions=versions())
