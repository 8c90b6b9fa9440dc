"""Neighbours in a graph of torch.compile that one operator computes: a sum with its norm, silu with a product.

    torch.compile(model, backend=fusing.backend())

The graph is changed before Inductor sees it. A sum and its RMS norm become add_rmsnorm where no gradient is wanted,
since that operator has no gradient operator; silu(gate) * up becomes silu_mul, which has one.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from opforge import ops

# x += y is none of them: others may read x, and the operator overwrites nothing
ADDS: tuple[Any, ...] = (operator.add, torch.add)
PRODUCTS: tuple[Any, ...] = (operator.mul, torch.mul)


def backend(inner: Any = "inductor") -> Callable[..., Any]:
    """A backend of torch.compile that fuses, then compiles with another. `.fused` counts by operator what was fused."""

    def compiled(graph: fx.GraphModule, example: Any, **options: Any) -> Any:
        compiled.fused.update(fuse(graph))  # type: ignore[attr-defined]
        return further(graph, example, **options)

    further = torch._dynamo.lookup_backend(inner) if isinstance(inner, str) else inner
    compiled.fused = Counter()  # type: ignore[attr-defined]
    return compiled


def fuse(graph: fx.GraphModule) -> Counter[str]:
    """Fuse what can be in a graph of Dynamo's, in place; how often, by operator."""
    fused: Counter[str] = Counter()
    for node in list(graph.graph.nodes):
        if _is(node, "rmsnorm"):
            fused["add_rmsnorm"] += _sum_and_norm(graph.graph, node)
        elif node.op == "call_function" and node.target in PRODUCTS:
            fused["silu_mul"] += _gate(graph.graph, node)
    if fused.total():
        graph.graph.lint()
        graph.recompile()
    return +fused


def _is(node: Any, name: str) -> bool:
    """Whether a node calls opforge's custom operator of this name."""
    target = getattr(getattr(torch.ops.opforge, name, None), "default", None)
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target is target


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _alike(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _sum_and_norm(graph: fx.Graph, norm: fx.Node) -> bool:
    total, weight, *eps = norm.args
    made = _value(norm)
    if not isinstance(total, fx.Node) or not isinstance(weight, fx.Node) or made is None or made.requires_grad:
        return False
    if total.op != "call_function" or total.target not in ADDS or total.kwargs or len(total.args) != 2:
        return False
    a, b = total.args
    # a weight that is computed may not be there yet where the sum is
    if not _alike(_value(a), _value(b)) or weight.op not in ("placeholder", "get_attr"):
        return False
    if str(made.dtype).removeprefix("torch.") not in ops.add_rmsnorm.operator.dtypes:
        return False
    with graph.inserting_after(total):
        both = graph.call_function(torch.ops.opforge.add_rmsnorm.default, (a, b, weight, *eps))
    with graph.inserting_after(both):
        normed = graph.call_function(operator.getitem, (both, 0))
        added = graph.call_function(operator.getitem, (both, 1))
    normed.meta, added.meta = dict(norm.meta), dict(total.meta)
    norm.replace_all_uses_with(normed)
    graph.erase_node(norm)
    total.replace_all_uses_with(added)
    graph.erase_node(total)
    return True


def _gate(graph: fx.Graph, product: fx.Node) -> bool:
    if product.kwargs or len(product.args) != 2:
        return False
    for gated, up in (product.args, product.args[::-1]):
        if not (_is(gated, "silu") or _is_torchs_silu(gated)) or len(gated.users) != 1:  # type: ignore[union-attr]
            continue
        gate = gated.args[0]  # type: ignore[union-attr]
        value = _value(gate)
        if not _alike(value, _value(up)) or value is None:
            continue
        if str(value.dtype).removeprefix("torch.") not in ops.silu_mul.operator.dtypes:
            continue
        with graph.inserting_after(product):
            made = graph.call_function(torch.ops.opforge.silu_mul.default, (gate, up))
        made.meta = dict(product.meta)
        product.replace_all_uses_with(made)
        graph.erase_node(product)
        graph.erase_node(gated)  # type: ignore[arg-type]
        return True
    return False


def _is_torchs_silu(node: Any) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and node.target is torch.nn.functional.silu
        and len(node.args) == 1
        and not node.kwargs.get("inplace", False)
    )
