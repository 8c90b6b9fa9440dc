"""`opforge.patch(model)`: a model's calls of PyTorch's functions go to opforge's operators, with a receipt.

A module is patched by its class: a subclass of its own, in which forward calls opforge.ops.functional. So parameters,
buffers, hooks, names and what else a module holds stay what they are. Everything is planned before anything is changed,
and what fails afterwards takes all of it off again.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from opforge.core.language.errors import UsageError
from opforge.model.agreement import Inputs, agreement, before, forward, inputs_of, training_step
from opforge.model.classes import RECIPE, Recipe, names_of, patched_class, place_of, rewriter, targets
from opforge.model.receipt import Line, Receipt, Status, line_of
from opforge.model.recognised import recognised
from opforge.model.rewriting import Site
from opforge.model.undoing import PATCH, lines_of, patch_of, receipts, unpatch
from opforge.model.watching import watching


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a patch will do: modules with their new classes, and sites that stay, with the reason."""

    classes: tuple[tuple[torch.nn.Module, type], ...]
    stay: tuple[tuple[str, Site, str], ...]


def patch(
    model: torch.nn.Module,
    *,
    example: Any = None,
    check: bool = False,
    train: bool = True,
    only: Iterable[str] | None = None,
    skip: Callable[[str, torch.nn.Module], bool] | None = None,
) -> torch.nn.Module:
    """Patch a model in place, and return it: `model.receipt()` says what became of each call site, `model.unpatch()`
    takes the patch off.

    example   what the model is called with (a tensor, a tuple of arguments or a mapping of named ones). A forward and a
              training step then prove which sites are reached and which kernels compute them
    check     hold outputs and gradients against the unpatched model's first; needs an example
    train     whether the example runs a training step too
    only      names of functions of opforge.ops.functional; all where not given
    skip      called with each module's name and the module: True leaves it as it is
    Raises UsageError where the model is patched already, and where nothing of it is replaced, by plan or by what ran;
    Disagrees where the check fails. After an error the model is what it was.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"A {type(model).__name__} is no torch.nn.Module. Give the model itself: opforge.patch(model)")
    inputs = None if example is None else inputs_of(example)
    if check and inputs is None:
        raise UsageError("check=True needs inputs to check by: opforge.patch(model, example=…, check=True)")
    names = names_of(only)
    plan = plan_of(model, names, skip)
    was = before(model, inputs) if check and inputs is not None else None
    _apply(plan)
    try:
        found = _receipt(model, plan, inputs, names, train or check, was)
    except BaseException:
        _take_off(plan)
        raise
    receipts[model] = found
    return model


def plan_of(
    model: torch.nn.Module, names: frozenset[str], skip: Callable[[str, torch.nn.Module], bool] | None = None
) -> Plan:
    """What a patch would do. Raises UsageError as patch does; nothing of the model is changed."""
    classes: list[tuple[torch.nn.Module, type]] = []
    stay: list[tuple[str, Site, str]] = []
    replaced = 0
    for path, module in model.named_modules():
        if patch_of(module) is not None:
            raise UsageError(
                f"This {type(model).__name__} is patched already ({path or 'the model itself'}). See what was replaced "
                "by model.receipt(), and take it off before you patch anew: model.unpatch()"
            )
        if skip is not None and skip(path, module):
            continue
        recipe, refusal = _recipe(module, names)
        made = patched_class(type(module), recipe) if recipe is not None else None
        if refusal:
            stay.append((path, place_of(type(module), "forward"), refusal))
        if made is not None:
            classes.append((module, made))
            replaced += bool(vars(made)[PATCH].sites)
    if not replaced:
        kinds = sorted({type(module).__name__ for module in model.modules()})
        raise UsageError(
            f"Nothing of this {type(model).__name__} would be replaced. Looked for: calls of {', '.join(sorted(names))}"
            f", and modules that compute an RMS norm, a layer norm, an activation or a SwiGLU layer, in {len(kinds)} "
            f"classes ({', '.join(kinds[:8])}{', …' if len(kinds) > 8 else ''}). "
            + "".join(f"{path or 'The model'}: {reason}. " for path, _, reason in stay[:4])
            + "Operators that exist: opforge list"
        )
    root = next((made for module, made in classes if module is model), None)
    recipe = vars(root)[RECIPE] if root is not None else Recipe(functions=names)
    whole = patched_class(type(model), replace(recipe, root=True))
    assert whole is not None  # a root's class has methods of its own
    classes = [(module, made) for module, made in classes if module is not model] + [(model, whole)]
    return Plan(classes=tuple(classes), stay=tuple(stay))


def _recipe(module: torch.nn.Module, names: frozenset[str]) -> tuple[Recipe | None, str]:
    """How a module is patched; and why it is not, where it looks as if it could be."""
    if isinstance(module, torch.jit.ScriptModule):
        return None, "it is a compiled TorchScript module: patch the model before torch.jit.script"
    found = rewriter(names).methods(type(module))
    loss = _loss_of(module, names)
    above = rewriter(names).inherited(type(module))
    sites = any(one.differs for one in (*found.values(), *above.values()))
    if "forward" in vars(module):
        theirs = vars(module)["forward"]
        # torch.compile and others keep a function of their own in the module
        words = f"its forward is {getattr(theirs, '__qualname__', type(theirs).__name__)}, set on the module itself"
        return (Recipe(functions=names, loss=loss), "") if loss else (None, words if sites else "")
    if sites or loss or found:
        return Recipe(functions=names, loss=loss), ""
    if not isinstance(inspect.getattr_static(type(module), "forward", None), types.FunctionType):
        return None, ""
    kind = recognised(module)
    if isinstance(kind, str):
        return None, kind
    return (Recipe(functions=names, kind=kind), "") if kind.name in names else (None, "")


def _loss_of(module: Any, names: frozenset[str]) -> Callable[..., Any] | None:
    """What a transformers model's `loss_function` gives, where it has a call to replace."""
    if not isinstance(inspect.getattr_static(type(module), "loss_function", None), property):
        return None
    if "self.loss_function" not in _source(type(module)):
        return None
    loss = module.loss_function
    return loss if callable(loss) and rewriter(names).function(loss).differs else None


def _source(kind: type) -> str:
    try:
        return inspect.getsource(inspect.unwrap(kind.forward))  # type: ignore[attr-defined]
    except (OSError, TypeError):
        return ""


def _apply(plan: Plan) -> None:
    done: list[tuple[torch.nn.Module, type]] = []
    try:
        for module, made in plan.classes:
            before_it = type(module)
            module.__class__ = made
            done.append((module, before_it))
    except BaseException:
        for module, original in reversed(done):
            module.__class__ = original
        raise


def _take_off(plan: Plan) -> None:
    for module, made in plan.classes:
        if type(module) is made:
            module.__class__ = vars(made)[PATCH].original


def _receipt(
    model: torch.nn.Module, plan: Plan, inputs: Inputs | None, names: frozenset[str], train: bool, was: Any
) -> Receipt:
    stay = tuple(line_of(path, site, None, False, f"not replaced: {reason}") for path, site, reason in plan.stay)
    name = type(model).__name__
    if inputs is None:
        return Receipt(model=name, ran=(), lines=(*lines_of(model, None), *stay))
    ran = ["forward"]
    # what is compiled already would be watched while it is traced, and not while it runs
    eagerly = torch.compiler.set_stance("force_eager")
    with eagerly, watching(model, targets(names)) as watch:
        watch.phase = "forward"
        outputs = forward(model, inputs)
        if train:
            watch.phase = "training step"
            step = training_step(model, inputs)
            if step.gradients:
                ran.append(watch.phase)
    lines: tuple[Line, ...] = (*lines_of(model, watch), *stay)
    if not any(line.status is Status.REPLACED for line in lines):
        shown = Receipt(model=name, ran=tuple(ran), lines=lines)
        raise UsageError(
            "No call was computed by an operator of opforge, so that the patch was taken off again. Looked for: "
            f"{', '.join(sorted(names))}.\n{shown}"
        )
    words = agreement(was, outputs, step) if was is not None else ""
    return Receipt(model=name, ran=tuple(ran), lines=lines, agreement=words)


__all__ = ["Plan", "patch", "plan_of", "unpatch"]
