"""Which calls and groups of a model opforge has an operator for, and the shape that each has there.

A call is asked of the operators that say they stand for its PyTorch function (`like` in their op.py), as
`opforge.ops.functional` asks them; a group of the operator that computes it in one pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from opforge.core.definition.operator import Like, Lowered, Operator
from opforge.core.definition.own_shapes import shape_name
from opforge.core.language.errors import OpforgeError
from opforge.model.fusible import Fusion
from opforge.model.nodes import Node, Shape
from opforge.registry import Registry

CALLED = {
    "_softmax": "softmax", "_safe_softmax": "softmax",
    "_log_softmax": "log_softmax", "native_layer_norm": "layer_norm", "mm": "matmul",
    "_fused_rms_norm": "rms_norm", "cross_entropy_loss": "cross_entropy", "convolution": "conv2d",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
}  # fmt: skip
"""Operators of PyTorch's whose function has another name."""

ATTENTION = "scaled_dot_product_attention"
GRADIENTS = {
    "_softmax_backward_data": "softmax", "_log_softmax_backward_data": "log_softmax", "silu_backward": "silu",
    "gelu_backward": "gelu", "native_layer_norm_backward": "layer_norm", "_fused_rms_norm_backward": "rms_norm",
    "_scaled_dot_product_flash_attention_for_cpu_backward": ATTENTION,
    "_scaled_dot_product_flash_attention_backward": ATTENTION,
    "_scaled_dot_product_efficient_attention_backward": ATTENTION,
}  # fmt: skip
"""Operators of backward passes, and the function that they belong to."""

REDUCTIONS = ("none", "mean", "sum")
"""In the order of their numbers in PyTorch's schemas."""

COMPUTED_BY: Mapping[str, tuple[str, ...]] = {
    "rms_norm": ("rms_norm",),
    "silu · mul": ("swiglu",),
    "cross_entropy": ("cross_entropy",),
}
"""Groups that a function has, by the names of functions (Like.name)."""

IN_ONE_PASS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "add + rms_norm": ("add_rmsnorm", ("x", "residual", "weight")),
    "linear + bias + gelu": ("linear", ("x", "w", "bias")),
    "linear + bias + silu": ("linear", ("x", "w", "bias")),
    "linear + bias + relu": ("linear", ("x", "w", "bias")),
    "rotary of queries and keys": ("rotary", ("q", "k", "cos", "sin")),
    "linear + residual": ("linear_add", ("x", "w", "bias", "residual")),
}
"""Groups that no function of PyTorch's has: an operator, and what it takes of the group's tensors."""


@dataclass(frozen=True, kw_only=True)
class Cover:
    """What opforge has for a call: an operator with the shape it would be called in, or why it has none.

    shape   as `--shape` takes it: rows=1x128,n=64,k=64
    """

    operator: str
    shape: str
    dtype: str
    reason: str


class Coverage:
    """The operators of a registry, asked for nodes and groups."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    @cached_property
    def _likes(self) -> dict[str, list[tuple[Operator, Like]]]:
        found: dict[str, list[tuple[Operator, Like]]] = {}
        for name in self.registry.names():
            operator = self.registry.unasked(name)
            for like in operator.like:
                names = {like.name, like.function.rsplit(".", 1)[-1]} if isinstance(like.function, str) else {like.name}
                for one in names:
                    found.setdefault(one, []).append((operator, like))
        return found

    def of_node(self, node: Node) -> Cover:
        """The operator for one call."""
        name = CALLED.get(node.base, node.base)
        pairs = self._likes.get(name, [])
        if node.arguments.get("transposed"):
            return Cover(operator="", shape="", dtype="", reason="a transposed convolution is another operator")
        function = GRADIENTS.get(name)
        if function is not None:
            return self._gradient(function, node)
        return self._first(pairs, node.arguments, name)

    def _gradient(self, function: str, node: Node) -> Cover:
        """The gradient operator of what stands for a function. Its shape is its forward operator's to know."""
        dtype = next((shape.dtype for shape in node.inputs if "float" in shape.dtype), "")
        for operator, _ in self._likes.get(function, []):
            if operator.gradient in self.registry.names() and dtype in operator.dtypes:
                reason = f"with {operator.name}, whose gradient it is"
                return Cover(operator=operator.gradient, shape="", dtype=dtype, reason=reason)
        return Cover(operator="", shape="", dtype=dtype, reason=f"no operator has a gradient for {function}")

    def of_fusion(self, fusion: Fusion) -> Cover:
        """The operator that computes a group in one pass."""
        for name in COMPUTED_BY.get(fusion.kind, ()):
            given = list(fusion.tensors.values())
            if name == "rms_norm" and len(given) == 2:
                arguments = {"input": given[0], "normalized_shape": given[0].sizes[-1:], "weight": given[1]}
                return self._first(self._likes.get(name, []), {**arguments, "eps": fusion.scalars["eps"]}, name)
            return self._first(self._likes.get(name, []), dict(enumerate(given)), name)
        name, roles = IN_ONE_PASS.get(fusion.kind, ("", ()))
        if not name or name not in self.registry.names():
            return Cover(operator="", shape="", dtype="", reason="no operator computes these in one pass")
        missing = [role for role in roles if role not in fusion.tensors]
        if missing:
            words = f"{name} takes {' and '.join(missing)}, which this has not"
            return Cover(operator="", shape="", dtype="", reason=words)
        operator = self.registry.unasked(name)
        known = {scalar.name for scalar in operator.scalars}
        scalars = {key: value for key, value in fusion.scalars.items() if key in known}
        return _shaped(operator, [_meta(fusion.tensors[role]) for role in roles], scalars)

    def _first(self, pairs: Sequence[tuple[Operator, Like]], arguments: Mapping[Any, Any], name: str) -> Cover:
        reasons = [f"no operator stands for {name}"] if not pairs else []
        for operator, like in pairs:
            try:
                lowered = _lowered(like, arguments)
            except (TypeError, RuntimeError, IndexError, ValueError, AttributeError) as error:
                reasons.append(f"{operator.name} cannot be asked: {error}")
                continue
            if isinstance(lowered, str):
                reasons.append(lowered)
                continue
            cover = _shaped(operator, lowered.tensors, lowered.scalars)
            if cover.operator:
                return cover
            reasons.append(cover.reason)
        return Cover(operator="", shape="", dtype="", reason="; ".join(dict.fromkeys(reasons)))


def _lowered(like: Like, arguments: Mapping[Any, Any]) -> Lowered | str:
    """A call by the names of PyTorch's schema as one of the function, whose first names may differ."""
    names = [
        name
        for name, one in inspect.signature(like.lower).parameters.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    # tensors with names of the schema's alone take the function's first names that the schema has not
    free = iter(name for name in names if name not in arguments)
    named: dict[str, Any] = {}
    for key, value in arguments.items():
        name = key if key in names else next(free, None) if isinstance(value, Shape) else None
        if name is None:
            continue
        if name == "reduction" and isinstance(value, int):
            value = REDUCTIONS[value]
        named[name] = _meta(value)
    with torch.no_grad():
        return like.lower(**named)


def _meta(value: Any) -> Any:
    """Tensors without contents in place of Shapes."""
    if isinstance(value, Shape):
        kind = getattr(torch, value.dtype)
        return torch.empty_strided(value.sizes, value.strides, dtype=kind, device="meta")
    return [_meta(one) for one in value] if isinstance(value, list) else value


def _shaped(operator: Operator, tensors: Iterable[Any], scalars: Mapping[str, Any]) -> Cover:
    """The operator's own words for a call of these tensors, or why it does not take them."""
    given = {spec.name: tensor for spec, tensor in zip(operator.inputs, tensors, strict=False) if tensor is not None}
    given |= {name: value for name, value in scalars.items() if isinstance(value, torch.Tensor)}
    plain = {name: value for name, value in scalars.items() if name not in given}
    dtype = next(
        (str(given[spec.name].dtype) for spec in operator.inputs if spec.name in given and spec.dtype == "T"), ""
    )
    dtype = dtype.removeprefix("torch.")
    if dtype not in operator.dtypes:
        return Cover(operator="", shape="", dtype=dtype, reason=f"{operator.name} has no {dtype}")
    try:
        axes = operator.bind({name: tuple(tensor.shape) for name, tensor in given.items()}, plain)
        present = {item.name: item.name.removeprefix("has_") in given for item in operator.presence}
        values = operator.scalar_values({**plain, **present})
        broken = operator.violated(axes, dtype, values)
        if broken is not None:
            return Cover(operator="", shape="", dtype=dtype, reason=f"{operator.name}: {broken.about or broken.name}")
        return Cover(operator=operator.name, shape=shape_name(operator, axes, values), dtype=dtype, reason="")
    except OpforgeError as error:
        return Cover(operator="", shape="", dtype=dtype, reason=str(error))
