"""What the class of a patched module knows, and taking the patch off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from opforge.core.language.errors import UsageError
from opforge.model.receipt import Line, Receipt, line_of
from opforge.model.rewriting import Site
from opforge.model.watching import Watch

PATCH = "_opforge_patch"
"""Under this name a patched class has its Patched."""
receipts: WeakKeyDictionary[torch.nn.Module, Receipt] = WeakKeyDictionary()
"""The receipt of each patched model that is alive: nothing is kept in the model itself."""


@dataclass(frozen=True, kw_only=True)
class Patched:
    """What a patched class knows.

    original   the module's own class
    sites      the call sites of its methods, and of what they call
    kept       sites that cannot be replaced, with the reason
    """

    original: type
    sites: tuple[Site, ...]
    kept: tuple[tuple[Site, str], ...]


def patch_of(module: torch.nn.Module) -> Patched | None:
    """The Patched of a module's class; None where it is not patched. Raises UsageError where its class was changed
    since.
    """
    found: Patched | None = getattr(type(module), PATCH, None)
    if found is not None and PATCH not in vars(type(module)):
        raise UsageError(
            f"A patched {found.original.__name__} has got another class since ({type(module).__mro__[1].__name__} "
            "among its bases): fully_shard and parametrize do that. Take that off first, then call model.unpatch()."
        )
    return found


def patched_modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module, Patched]]:
    """(name, module, Patched) for every patched module. Raises UsageError as patch_of does."""
    return [(name, module, found) for name, module in model.named_modules() if (found := patch_of(module)) is not None]


def unpatch(model: torch.nn.Module) -> torch.nn.Module:
    """Give every module of the model its own class back; nothing else of it was changed. Returns the model.

    Raises UsageError where nothing of it is patched, and where a class was changed again since; then nothing is changed
    here.
    """
    found = patched_modules(model)
    if not found:
        raise UsageError(f"No module of this {type(model).__name__} is patched. Patch it first: opforge.patch(model)")
    for _, module, patched in found:
        module.__class__ = patched.original
    receipts.pop(model, None)
    return model


def receipt(model: torch.nn.Module) -> Receipt:
    """The Receipt of a patched model. A copy's, or a loaded one's, says what was replaced; what ran was another's."""
    kept = receipts.get(model)
    if kept is not None:
        return kept
    lines = lines_of(model, None)
    if not lines:
        raise UsageError(f"No module of this {type(model).__name__} is patched. Patch it first: opforge.patch(model)")
    return Receipt(model=type(model).__name__, ran=(), lines=lines)


def lines_of(model: torch.nn.Module, watch: Watch | None) -> tuple[Line, ...]:
    """A line for every site of every patched module, and for what a watch saw beside them."""
    ran = watch is not None
    seen = dict(watch.seen) if watch is not None else {}
    lines: list[Line] = []
    for path, module, patched in patched_modules(model):
        for site in patched.sites:
            if selected(module, site):
                lines.append(line_of(path, site, seen.pop((path, site), None), ran))
        lines += [line_of(path, site, None, ran, f"not replaced: {reason}") for site, reason in patched.kept]
    lines += [line_of(path, site, calls, ran) for (path, site), calls in seen.items()]
    if watch is not None:
        lines += [
            line_of(path, site, None, ran, f"PyTorch × {calls}: called in a way that a patch does not follow")
            for (path, site), calls in watch.missed.items()
        ]
    return tuple(lines)


def selected(module: Any, site: Site) -> bool:
    """Whether a site is of the attention function that the module's config names, or of none."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return not site.of or chosen is None or site.of == chosen
