"""The class that a patched module has: a subclass of its own, of the same name, in which some methods are others.

Nothing else of a module is touched, so parameters, buffers, hooks and whatever else it holds stay what they are, and
taking a patch off is giving the class back. A pickled or copied module says how its class is made from its own.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from opforge import ops
from opforge.core.definition.likeness import Like, Lowered
from opforge.core.language.errors import UsageError, unknown
from opforge.definitions.torch_calls import elementwise, normalized
from opforge.model.recognised import Activation, Gated, Kind, Norm
from opforge.model.rewriting import SITES, Rewriter, Rewritten, Site
from opforge.model.undoing import PATCH, Patched, receipt, unpatch
from opforge.model.watching import watched
from opforge.ops import functional
from opforge.ops.lowering import lowered_function

NEW: Any = vars(copyreg)["__newobj__"]
"""With this a pickle begins an object whose class says nothing of pickling."""
ROOT: Mapping[str, Callable[..., Any]] = {"unpatch": unpatch, "receipt": receipt}
"""Methods that a patched model has more."""
RECIPE = "_opforge_recipe"
"""Under this name a patched class has the Recipe that it was made by."""
_making = threading.RLock()
_rewriters: dict[frozenset[str], Rewriter] = {}
_made: dict[tuple[type, Recipe], type] = {}


@dataclass(frozen=True)
class Recipe:
    """How a patched class is made from a module's own.

    functions   names of opforge.ops.functional that are called in place of PyTorch's
    kind        what the module was found to compute, where its whole forward is replaced
    loss        the function that its `loss_function` gives (transformers); None where it has none or it stays
    root        whether the class has `unpatch` and `receipt`
    """

    functions: frozenset[str]
    kind: Kind | None = None
    loss: Callable[..., Any] | None = None
    root: bool = False


def names_of(functions: Any) -> frozenset[str]:
    """The functions that are asked for by name; all where None. Raises UsageError for a name that is not known."""
    if functions is None:
        return frozenset(functional.FUNCTIONS)
    for name in (names := frozenset([functions] if isinstance(functions, str) else functions)):
        if name not in functional.FUNCTIONS:
            raise unknown("function of opforge.ops.functional", str(name), functional.FUNCTIONS)
    return names


def targets(names: frozenset[str]) -> dict[Any, str]:
    """PyTorch's functions, and their names here."""
    found = {}
    for name in sorted(names):
        function = functional.FUNCTIONS[name].instead  # type: ignore[attr-defined]
        if not (getattr(function, "__module__", "") or "").startswith("opforge"):
            found[function] = name
    return found


def rewriter(names: frozenset[str]) -> Rewriter:
    """The Rewriter that replaces these functions."""
    with _making:
        if names not in _rewriters:
            made: dict[Any, tuple[str, Any]] = {
                real: (name, watched(name, functional.FUNCTIONS[name])) for real, name in targets(names).items()
            }
            label = str(len(_rewriters))
            _rewriters[names] = Rewriter(made, label)
            # a loss that a forward makes and calls: F.cross_entropy is in its class
            losses = {loss: patched_class(loss, Recipe(functions=names)) for loss in (torch.nn.CrossEntropyLoss,)}
            made |= {loss: ("cross_entropy", instead) for loss, instead in losses.items() if instead is not None}
            _rewriters[names] = Rewriter(made, label)
        return _rewriters[names]


def patched_class(original: type, recipe: Recipe) -> type | None:
    """The class in the place of `original`; None where nothing of it would differ."""
    with _making:
        key = (original, recipe)
        if key not in _made:
            made = _class(original, recipe)
            if made is None:
                return None
            _made[key] = made
        return _made[key]


def revive(original: type, recipe: Recipe) -> Any:
    """An empty module of the patched class: what a pickle of one begins with."""
    made = patched_class(original, recipe)
    if made is None:
        raise UsageError(
            f"{original.__module__}.{original.__qualname__} was patched when it was pickled, and here it has no call "
            "that opforge stands for. Take the patch off before pickling: model.unpatch(), or save its state_dict."
        )
    blank: Any = made
    return blank.__new__(blank)


def _class(original: type, recipe: Recipe) -> type | None:
    body: dict[str, Any] = {}
    methods: dict[str, Rewritten] = {}
    above: dict[type, Rewritten] = {}
    sites: list[Site] = []
    if recipe.kind is not None:
        site = place_of(original, recipe.kind.name)
        body["forward"] = _forward(original, recipe.kind, site)
        sites.append(site)
    else:
        methods = rewriter(recipe.functions).methods(original)
        body |= {name: one.function for name, one in methods.items() if one.differs}
        above = rewriter(recipe.functions).inherited(original)
        sites += [site for one in (*methods.values(), *above.values()) for site in one.sites]
    if recipe.loss is not None:
        loss = rewriter(recipe.functions).function(recipe.loss)
        if loss.differs:
            body["loss_function"] = _loss_property(original, loss.function)
            sites += loss.sites
    kept = tuple(dict.fromkeys(pair for one in methods.values() for pair in one.kept))
    if not (body or above or kept or recipe.root):
        return None
    if recipe.root:
        body |= {name: method for name, method in ROOT.items() if not hasattr(original, name)}
    body |= {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        RECIPE: recipe,
        PATCH: Patched(original=original, sites=tuple(dict.fromkeys(sites)), kept=kept),
    }
    # before each class that `super()` reaches comes one in which its method is rewritten
    between = [_renamed(base, {"forward": one.function}) for base, one in above.items()]
    made: Any = type(original)(original.__name__, (original, *between), body)
    setattr(made, SITES, vars(made)[PATCH].sites)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = super(made, self).__reduce_ex__(protocol)
        if isinstance(reduced, tuple) and reduced[0] is NEW and reduced[1] == (made,):
            return (revive, (original, recipe), *reduced[2:])
        return reduced

    made.__reduce_ex__ = __reduce_ex__
    return made  # type: ignore[no-any-return]


def _renamed(base: type, body: dict[str, Any]) -> type:
    made: type = type(base)(
        base.__name__, (base,), {"__module__": base.__module__, "__qualname__": base.__qualname__} | body
    )
    return made


def place_of(original: type, function: str) -> Site:
    """Where a class's forward stands."""
    forward = inspect.getattr_static(original, "forward", None)
    # a compiled TorchScript module answers no questions about its forward
    code = getattr(inspect.unwrap(forward), "__code__", None) if isinstance(forward, FunctionType) else None
    if code is None:
        return Site(function, "", 0, original.__qualname__)
    return Site(function, code.co_filename, code.co_firstlineno, code.co_qualname)


def _loss_property(original: type, function: Callable[..., Any]) -> property:
    theirs: Any = inspect.getattr_static(original, "loss_function")
    return property(lambda self: function, theirs.fset, theirs.fdel, theirs.__doc__)


def _forward(original: type, kind: Kind, site: Site) -> Callable[..., Any]:
    """The forward of a module that computes `kind`."""
    theirs: Callable[..., Any] = original.forward  # type: ignore[attr-defined]
    if isinstance(kind, Gated):
        product = watched(kind.name, functional.FUNCTIONS[kind.name], site)

        def forward(self: Any, x: Tensor) -> Any:
            return getattr(self, kind.down)(product(getattr(self, kind.gate)(x), getattr(self, kind.up)(x)))

    else:
        name = {"rms_norm": "rmsnorm", "layer_norm": "layernorm"}.get(kind.name, kind.name)
        lower = _lower_norm(kind) if isinstance(kind, Norm) else _lower_activation(kind)
        bias = kind.name == "layer_norm"
        like = Like(function=lower, lower=lower, autocast=False, name=kind.name)
        instead = watched(kind.name, lowered_function(kind.name, _as_it_was(theirs), ((_operator(name), like),)), site)

        if isinstance(kind, Norm):

            def forward(self: Any, x: Tensor) -> Any:
                weight = self.weight + 1.0 if kind.plus_one else self.weight
                return instead(x, weight, self.bias if bias else None, getattr(self, kind.eps), self)

        else:

            def forward(self: Any, x: Tensor) -> Any:
                return instead(x, self)

    @functools.wraps(theirs)
    def called(self: Any, *given: Any, **named: Any) -> Any:
        return forward(self, *given) if len(given) == 1 and not named else theirs(self, *given, **named)

    return called


def _as_it_was(theirs: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *given: theirs(given[-1], x)


def _operator(name: str) -> Any:
    return getattr(ops, name).operator


def _lower_norm(kind: Norm) -> Callable[..., Lowered | str]:
    def lower(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, module: Any) -> Lowered | str:
        """As the module that was recognised: a norm with its weight, and its epsilon."""
        parameters = (weight, bias) if kind.name == "layer_norm" else (weight,)
        return normalized(x, weight.shape, parameters, eps)

    return lower


def _lower_activation(kind: Activation) -> Callable[[Tensor, Any], Lowered | str]:
    named: dict[str, Any] = dict(kind.named)

    def lower(x: Tensor, module: Any) -> Lowered | str:
        """As the module that was recognised: an activation of each element."""
        return elementwise(x, **named)

    return lower
