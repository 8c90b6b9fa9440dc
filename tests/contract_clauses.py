"""An operator's promises as a PyTorch function, by name: what the tests of contracts ask."""

from __future__ import annotations

import torch

from opforge.dispatch import Chooser, Function
from opforge.registry import load
from opforge.verify.extra.contracts import check_function


def clauses(name, function=None, *, device="cpu", **options):
    """The Clause of each name for the operator, or for a `function` in its place. On a CPU torch.compile stops before
    its compiler.
    """
    registry = load([])
    operator = registry.operator(name)
    own = Function(operator, Chooser(registry))  # which registers the custom operator
    if device == "cpu":
        options.setdefault("compiler", "aot_eager")
    found = check_function(
        operator,
        function or own,
        getattr(torch.ops.opforge, name).default,
        device=device,
        gradient_operators=registry.gradient_operators(name),
        **options,
    )
    return {clause.name: clause for clause in found}
