"""Modules that compute what an operator does without calling a function of PyTorch's for it, told by what they return.

A module is asked, not believed by its name: with weights and inputs drawn at random it must give what the formula
gives, in float32 and over seven orders of magnitude, small inputs that show its epsilon among them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from opforge.core.language.errors import first_line

AGREES = 1e-5
"""Float32 formulas written in another order differ by some 1e-7 of the result; an epsilon of 1e-6 in the place of 1e-5
shows as 0.1 in a row of squares of 1e-6, and weight + 1 in the place of weight as 1.
"""
WIDTH, INNER = 8, 6
"""Of the matrices that a SwiGLU layer is asked with."""
GATES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("gate", "up", "down"))
"""Names that models give to the three projections of a SwiGLU layer."""


@dataclass(frozen=True)
class Norm:
    """A norm over the last axis. `eps` is the name of the attribute; `plus_one`: it multiplies by weight + 1."""

    name: str
    eps: str
    plus_one: bool = False


@dataclass(frozen=True)
class Activation:
    """An activation without parameters, with what the function takes by name."""

    name: str
    named: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Gated:
    """down(silu(gate(x)) * up(x)), with the names of the three."""

    gate: str
    up: str
    down: str
    name: str = "swiglu"


Kind = Norm | Activation | Gated


def recognised(module: torch.nn.Module) -> Kind | str:
    """What a module computes; in words why it is none of these; "" where nothing of it suggests one."""
    arguments = _required(module)
    names = {name for name, _ in module.named_children()}
    triple = next((gates for gates in GATES if names.issuperset(gates)), None)
    norm_like = "norm" in type(module).__name__.lower() and not names
    if triple is None and not norm_like and (names or next(module.parameters(recurse=False), None) is not None):
        return ""
    if arguments != 1:
        return f"its forward takes {arguments} tensors, and the operator one" if triple or norm_like else ""
    if norm_like and type(module).__module__.startswith("torch.nn."):
        return f"no operator stands for {type(module).__name__}"
    if any(True for _ in module.buffers(recurse=False)):
        return "it has buffers" if norm_like else ""
    try:
        with torch.device("cpu"), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if triple is not None:
                return _gated(module, Gated(*triple))
            if norm_like:
                return _norm(module)
            return _activation(module)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's forward raises when it is given rows of numbers
        words = f"given random rows to see what it computes, it raised {type(error).__name__}: {first_line(error)}"
        # any module that takes one tensor is asked; one that looks like none of these has refused nothing
        return words if norm_like or triple else ""


def _required(module: torch.nn.Module) -> int:
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return -1
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in places for one in parameters)


def _norm(module: torch.nn.Module) -> Kind | str:
    parameters = dict(module.named_parameters(recurse=False))
    shapes = {tuple(one.shape) for one in parameters.values()}
    if set(parameters) not in ({"weight"}, {"weight", "bias"}) or len(shapes) != 1 or len(next(iter(shapes))) != 1:
        return f"its parameters are {', '.join(parameters) or 'none'}, and the operator takes a row of weights"
    (width,) = next(iter(shapes))
    drawn = {name: torch.randn(width) for name in parameters}
    scales = torch.tensor([1.0, 1e-3, 1e-4, 1e3])[:, None]
    x = torch.randn(4, width) * scales + scales
    returned = torch.func.functional_call(module, drawn, (x,))
    nearest = float("inf")
    for kind in _norms(module, "bias" in parameters):
        expected = _of_norm(kind, x, drawn, float(getattr(module, kind.eps)))
        apart = _apart(returned, expected)
        if apart <= AGREES:
            return kind
        nearest = min(nearest, apart)
    if nearest == float("inf"):
        return "no attribute of it is an epsilon"
    return f"it computes no norm that an operator has: the nearest differs by {nearest:.1g} of the result"


def _norms(module: torch.nn.Module, bias: bool) -> Iterator[Norm]:
    for name, value in sorted(vars(module).items()):
        if isinstance(value, float) and 0 < value < 1:
            if bias:
                yield Norm("layer_norm", name)
            else:
                yield from (Norm("rms_norm", name, plus_one) for plus_one in (False, True))


def _of_norm(kind: Norm, x: Tensor, drawn: dict[str, Tensor], eps: float) -> Tensor:
    shape = x.shape[-1:]
    x = x.double()
    weight = drawn["weight"].double() + (1.0 if kind.plus_one else 0.0)
    if kind.name == "layer_norm":
        return torch_functional.layer_norm(x, shape, weight, drawn["bias"].double(), eps)
    return torch_functional.rms_norm(x, shape, weight, eps)


def _activation(module: torch.nn.Module) -> Kind | str:
    x = torch.cat([torch.linspace(-9, 9, 181), torch.randn(8)])
    returned = module(x.clone())
    formulas: dict[Activation, Callable[[Tensor], Tensor]] = {
        Activation("silu"): torch_functional.silu,
        Activation("gelu"): torch_functional.gelu,
        Activation("gelu", (("approximate", "tanh"),)): lambda x: torch_functional.gelu(x, approximate="tanh"),
    }
    for kind, formula in formulas.items():
        if _apart(returned, formula(x.double())) <= AGREES:
            return kind
    return ""


def _gated(module: torch.nn.Module, kind: Gated) -> Kind | str:
    gate, up, down = (getattr(module, name) for name in (kind.gate, kind.up, kind.down))
    others = [child for child in module.children() if child not in (gate, up, down)]
    if any(child._forward_hooks or child._forward_pre_hooks for child in others):
        return "a hook waits for its activation, which would not be called"
    drawn = {}
    for name, child in ((kind.gate, gate), (kind.up, up), (kind.down, down)):
        if not isinstance(child, torch.nn.Linear) or set(dict(child.named_parameters())) - {"weight", "bias"}:
            return f"its {name} is a {type(child).__name__}, and no Linear"
        rows, columns = (WIDTH, INNER) if child is down else (INNER, WIDTH)
        drawn[f"{name}.weight"] = torch.randn(rows, columns)
        if child.bias is not None:
            drawn[f"{name}.bias"] = torch.randn(rows)
    if set(drawn) != set(dict(module.named_parameters())):
        return "it has parameters besides three matrices"
    # a matrix may have any shape: a few small ones show the formula as well as its own
    x = torch.randn(4, WIDTH)
    returned = torch.func.functional_call(module, drawn, (x,))
    g, u = (_product(x, drawn, name) for name in (kind.gate, kind.up))
    expected = _product(torch_functional.silu(g) * u, drawn, kind.down)
    return kind if _apart(returned, expected) <= AGREES else "it computes no down(silu(gate(x)) * up(x))"


def _product(x: Tensor, drawn: dict[str, Tensor], name: str) -> Tensor:
    bias = drawn.get(f"{name}.bias")
    product: Tensor = torch_functional.linear(
        x.double(), drawn[f"{name}.weight"].double(), None if bias is None else bias.double()
    )
    return product


def _apart(returned: Any, expected: Tensor) -> float:
    """The largest difference, as a share of the largest result of that row; infinity for what is no such tensor."""
    if not isinstance(returned, Tensor) or returned.shape != expected.shape:
        return float("inf")
    rows = expected.double().reshape(-1, expected.shape[-1])
    largest = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    apart = float(((returned.double().reshape(rows.shape) - rows).abs() / largest).max())
    return apart if apart == apart else float("inf")
