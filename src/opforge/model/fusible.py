"""Neighbours that one kernel could compute: found by what feeds what, not by names of modules.

A group is a Fusion: its members, and what it would move as one kernel. Groups may overlap, as silu with its linear and
with the product behind it do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from opforge.core.definition.operator import Cost
from opforge.model.links import CASTS, Links
from opforge.model.nodes import FORWARD, Graph, Shape

LINEAR = frozenset(("linear", "addmm", "mm", "matmul"))
PRODUCT = frozenset(("matmul", "bmm", "baddbmm", "mm", "einsum"))
ACTIVATIONS = frozenset(("gelu", "silu", "relu", "tanh", "sigmoid", "relu6", "hardswish", "softplus"))
GATES = frozenset(("silu", "gelu", "sigmoid", "relu", "tanh"))
NORMS = frozenset(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"))
SOFTMAX = frozenset(("softmax", "_softmax", "_safe_softmax"))
BATCH_NORM = frozenset({
    "batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm",
    "cudnn_batch_norm", "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
})  # fmt: skip
CONVOLUTION = frozenset({
    "conv1d", "conv2d", "conv3d", "convolution", "_convolution", "mkldnn_convolution",
})  # fmt: skip
ON_SCORES = frozenset(
    {
        "add",
        "mul",
        "div",
        "sub",
        "cat",
        "where",
        "masked_fill",
        "amax",
        "max",
        "dropout",
        "native_dropout",
        "slice",
    }
)  # fmt: skip | CASTS
ELEMENTWISE = (
    frozenset(
        [
            "add",
            "sub",
            "rsub",
            "mul",
            "div",
            "neg",
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "pow",
            "square",
            "abs",
            "sigmoid",
            "tanh",
            "silu",
            "gelu",
            "relu",
            "softplus",
            "cos",
            "sin",
            "where",
            "clamp",
            "masked_fill",
            "reciprocal",
            "dropout",
            "native_dropout",
            "silu_backward",
            "gelu_backward",
            "threshold_backward",
            "sigmoid_backward",
            "tanh_backward",
            "erf",
            "maximum",
            "minimum",
        ]
    )
    | CASTS
)


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """Nodes that one kernel could compute.

    kind       "rms_norm", "silu · mul", …
    cost       of one kernel for all of them
    saved      bytes that the nodes move now and the kernel would not
    tensors    what an operator for it would be called with, by role ("x", "weight"), where they are known
    scalars    its parameters, where they are known
    """

    kind: str
    nodes: tuple[int, ...]
    module: str
    phase: str
    cost: Cost
    saved: int
    tensors: dict[str, Shape] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)


def fusions(graph: Graph) -> tuple[Fusion, ...]:
    """Every group that is found, in the order of the graph; of one kind no two with the same members."""
    links = Links(graph)
    found: dict[tuple[str, frozenset[int]], Fusion] = {}
    for finder in FINDERS:
        for kind, members, tensors, scalars in finder(links):
            key = (kind, frozenset(members))
            if len(key[1]) < 2 or key in found:
                continue
            last = max(members)
            cost = links.cost(key[1])
            found[key] = Fusion(
                kind=kind,
                nodes=tuple(sorted(key[1])),
                module=_common(links.nodes[index].module for index in key[1]),
                phase=links.nodes[last].phase,
                cost=cost,
                saved=max(0, links.separate(key[1]) - cost.bytes),
                tensors=tensors,
                scalars=scalars,
            )
    return tuple(sorted(_without_covered_chains(found.values()), key=lambda one: one.nodes))


Found = tuple[str, list[int], dict[str, Shape], dict[str, Any]]


def _common(paths: Iterator[str]) -> str:
    """The module that all lie in."""
    parts = [path.split(".") if path else [] for path in paths]
    shared: list[str] = []
    for words in zip(*parts, strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    return ".".join(shared)


def _without_covered_chains(found: Any) -> list[Fusion]:
    """Chains of elementwise operators are named only where no group with a name has their members."""
    groups = list(found)
    named = [set(one.nodes) for one in groups if one.kind != "elementwise chain"]
    return [
        one for one in groups if one.kind != "elementwise chain" or not any(set(one.nodes) & other for other in named)
    ]


def _norms(links: Links) -> Iterator[Found]:
    """x * rsqrt(mean(x^2) + eps) * weight in its steps, with the sum before it where there is one."""
    for node in links.nodes:
        members: list[int] = [node.index]
        root = node.base == "rsqrt" or (node.base == "pow" and node.arguments.get("exponent") == -0.5)
        if not root or node.phase != FORWARD:
            continue
        shifted = links.up(links.makers[node.index][0], members)
        if not links.of(shifted, ("add",)):
            continue
        mean = links.up(links.makers[shifted][0], members)  # type: ignore[index]
        if not links.of(mean, ("mean",)):
            continue
        square = links.up(links.makers[mean][0], members)  # type: ignore[index]
        if not links.of(square, ("pow", "mul", "square")):
            continue
        assert shifted is not None and mean is not None and square is not None
        before: list[int] = []
        source = links.up(links.makers[square][0], before)
        x = links.nodes[square].inputs[0]
        members += [shifted, mean, square, *before]
        scaled = next((user for user in links.down(node.index) if links.of(user, ("mul",))), None)
        if scaled is None:
            continue
        members.append(scaled)
        casts: list[int] = []
        weight = None
        for user in links.down(scaled, casts):
            if not links.of(user, ("mul",)) or links.nodes[user].outputs[0].sizes != x.sizes:
                continue
            sides = zip(links.nodes[user].inputs, links.makers[user], strict=False)
            other = [(shape, maker) for shape, maker in sides if shape.sizes == x.sizes[-1:]]
            if other:
                weight = other[0][0]
                members += [user, *casts, *_of_parameter(links, other[0][1])]
                break
        tensors = {"x": _as_read(links, before, x)} | ({"weight": weight} if weight is not None else {})
        scalars = {"eps": links.nodes[shifted].arguments.get("other", 1e-6)}
        yield "rms_norm", members, tensors, scalars
        yield from _sum_before(links, source, members, tensors, scalars, "rms_norm", x)


def _as_read(links: Links, casts: list[int], x: Shape) -> Shape:
    """What a norm reads, before it is cast."""
    return links.nodes[casts[-1]].inputs[0] if casts else x


def _of_parameter(links: Links, maker: int | None) -> list[int]:
    """Nodes that make a weight ready, as 1 + weight."""
    found: list[int] = []
    while maker is not None and len(links.makers[maker]) == 1 and links.nodes[maker].base in {"add", *CASTS}:
        found.append(maker)
        maker = links.makers[maker][0]
    return found if maker is None else []


def _whole_norms(links: Links) -> Iterator[Found]:
    for node in links.nodes:
        if node.base in NORMS and node.phase == FORWARD:
            kind = "layer_norm" if "layer" in node.base else "rms_norm"
            source = links.up(links.makers[node.index][0])
            yield from _sum_before(links, source, [node.index], {"x": node.inputs[0]}, {}, kind, node.inputs[0])


def _sum_before(
    links: Links,
    source: int | None,
    members: list[int],
    tensors: dict[str, Shape],
    scalars: dict[str, Any],
    kind: str,
    x: Shape,
) -> Iterator[Found]:
    if source is not None and links.of(source, ("add",)):
        added = links.nodes[source].inputs
        if len(added) == 2 and all(shape.sizes == x.sizes for shape in added):
            yield f"add + {kind}", [source, *members], {**tensors, "x": added[0], "residual": added[1]}, scalars


def _gates(links: Links) -> Iterator[Found]:
    """act(gate) * up."""
    for node in links.nodes:
        if node.base != "mul" or len(node.inputs) != 2 or node.phase != FORWARD:
            continue
        for at in (0, 1):
            passed: list[int] = []
            gate = links.up(links.makers[node.index][at], passed)
            if links.of(gate, GATES) and node.inputs[0].sizes == node.inputs[1].sizes:
                assert gate is not None
                base = links.nodes[gate].base
                tensors = {"gate": links.nodes[gate].inputs[0], "up": node.inputs[1 - at]}
                yield f"{base} · mul", [node.index, gate, *passed], tensors, {}
                break


def _activated(links: Links) -> Iterator[Found]:
    """A product of matrices with the activation, or the sum, that follows it."""
    for node in links.nodes:
        if node.phase != FORWARD or not node.inputs:
            continue
        makers = links.makers[node.index]
        if node.base in ACTIVATIONS and links.of(makers[0], LINEAR):
            assert makers[0] is not None
            product = links.nodes[makers[0]]
            tensors, bias = _of_linear(product.arguments)
            words = f"linear + {'bias + ' if bias else ''}{node.base}"
            # gelu by tanh is another function than gelu
            kind = node.base + ("_tanh" if node.arguments.get("approximate") == "tanh" else "")
            yield words, [node.index, product.index], tensors, {"activation": kind}
        elif node.base == "add" and len(node.inputs) == 2 and node.inputs[0].sizes == node.inputs[1].sizes:
            at = next((at for at in (0, 1) if links.of(makers[at], LINEAR) and _alone(links, makers[at])), None)
            if at is not None:
                product = links.nodes[makers[at]]  # type: ignore[index]
                tensors, _ = _of_linear(product.arguments)
                residual = {"residual": node.inputs[1 - at]}
                yield "linear + residual", [node.index, product.index], {**tensors, **residual}, {}


def _alone(links: Links, index: int | None) -> bool:
    return index is not None and len(links.users[index]) == 1


def _of_linear(given: Any) -> tuple[dict[str, Shape], bool]:
    """What a product of matrices is called with, in a linear layer's words, and whether it has a bias."""
    named = {"x": given.get("input"), "w": given.get("weight"), "bias": given.get("bias")}
    if "mat2" in given:
        second = given["mat2"]
        turned = replace(second, sizes=second.sizes[::-1], strides=second.strides[::-1])
        bias = given["self"] if "mat1" in given and len(given["self"].sizes) == 1 else None
        named = {"x": given.get("mat1", given["self"]), "w": turned, "bias": bias}
    tensors = {key: shape for key, shape in named.items() if isinstance(shape, Shape)}
    return tensors, "bias" in tensors


def _made_by(links: Links, index: int | None, base: str) -> int | None:
    """The maker of one of a node's inputs that is a call of this operator."""
    makers = links.makers[index] if index is not None else ()
    return next((one for one in makers if links.of(one, (base,))), None)


def _rotary(links: Links) -> Iterator[Found]:
    """x * cos + rotated(x) * sin, where one half of the rotated is negated."""
    for node in links.nodes:
        makers = links.makers[node.index]
        if node.base == "add" and len(makers) == 2 and all(links.of(maker, ("mul",)) for maker in makers):
            for at in (0, 1):
                turned = _made_by(links, makers[at], "cat")
                negated = _made_by(links, turned, "neg")
                if turned is not None and negated is not None:
                    members = [node.index, makers[0], makers[1], turned, negated]
                    yield "rotary", [one for one in members if one is not None], {"x": node.outputs[0]}, {}
                    break
        elif (
            node.base == "cat" and len(makers) == 2 and links.of(makers[0], ("sub",)) and links.of(makers[1], ("add",))
        ):
            products = [one for half in makers for one in links.makers[half]]  # type: ignore[index]
            if all(links.of(one, ("mul",)) for one in products):
                members = [node.index, *makers, *products]
                yield "rotary", [one for one in members if one is not None], {"x": node.outputs[0]}, {}


def _rotary_pairs(links: Links) -> Iterator[Found]:
    """Queries and keys that are turned by the same angles, in one module."""
    found = list(_rotary(links))
    for (_, queries, q, _), (_, keys, k, _) in pairwise(found):
        shapes = [one["x"].sizes for one in (q, k)]
        modules = {links.nodes[members[0]].module for members in (queries, keys)}
        if any(len(sizes) != 4 for sizes in shapes) or len(modules) > 1 or shapes[0][2:] != shapes[1][2:]:
            continue
        # an operator takes tokens before heads, and a table of angles for half a head
        turned = [_contiguous(q["x"], (sizes[0], sizes[2], sizes[1], sizes[3])) for sizes in shapes]
        table = _contiguous(q["x"], (shapes[0][2], shapes[0][3] // 2), dtype="float32")
        tensors = {"q": turned[0], "k": turned[1], "cos": table, "sin": table}
        yield "rotary of queries and keys", [*queries, *keys], tensors, {}


def _contiguous(like: Shape, sizes: tuple[int, ...], dtype: str = "") -> Shape:
    strides = [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
    itemsize = 4 if dtype else like.itemsize
    return Shape(sizes=sizes, strides=tuple(strides), dtype=dtype or like.dtype, itemsize=itemsize)


def _attention(links: Links) -> Iterator[Found]:
    """Products around a softmax, with what is done to the scores between them."""
    for node in links.nodes:
        if node.base not in SOFTMAX or node.phase != FORWARD or len(node.outputs[0].sizes) < 3:
            continue
        above, below = _reach(links, node.index, links.makers), _reach(links, node.index, links.users)
        if any(links.of(one, PRODUCT) for one in above) and any(links.of(one, PRODUCT) for one in below):
            yield "attention", [node.index, *above, *below], {}, {}


def _reach(links: Links, start: int, edges: Any) -> list[int]:
    """What stands between a softmax and the product on one side of it, with that product; [] where there is none."""
    found: list[int] = []
    front = [start]
    product = False
    while front:
        for one in [one for one in edges[front.pop()] if one is not None and one not in found]:
            if links.nodes[one].phase != FORWARD:
                continue
            if links.of(one, PRODUCT):
                found.append(one)
                product = True
            elif (
                links.of(one, ON_SCORES)
                and 2 * links.nodes[one].outputs[0].elements > links.nodes[start].inputs[0].elements
            ):
                found.append(one)
                front.append(one)
    return found if product else []


def _losses(links: Links) -> Iterator[Found]:
    """Cross-entropy, with the product that makes its scores."""
    for node in links.nodes:
        if node.base not in ("cross_entropy_loss", "nll_loss", "nll_loss_forward") or node.phase != FORWARD:
            continue
        members = [node.index]
        at = links.makers[node.index][0]
        while at is not None and links.nodes[at].base in {
            "log_softmax",
            "_log_softmax",
            "slice",
            "constant_pad_nd",
            *CASTS,
        }:
            members.append(at)
            at = links.makers[at][0] if links.makers[at] else None
        if len(members) > 1 and any(links.of(one, ("log_softmax", "_log_softmax")) for one in members):
            tensors = {"x": links.nodes[members[-1]].inputs[0], "target": node.inputs[1]}
            yield "cross_entropy", list(members), tensors, {}
        if links.of(at, LINEAR):
            assert at is not None
            yield "linear + cross_entropy", [*members, at], _of_linear(links.nodes[at].arguments)[0], {}


def _convolutions(links: Links) -> Iterator[Found]:
    """A convolution with the norm and the activation behind it."""
    for node in links.nodes:
        if node.base in BATCH_NORM and node.phase == FORWARD and links.of(links.makers[node.index][0], CONVOLUTION):
            members = [links.makers[node.index][0], node.index]
            users = links.users[node.index]
            act = next((user for user in users if links.of(user, ACTIVATIONS) and len(users) == 1), None)
            words = "conv + batch_norm" + (f" + {links.nodes[act].base}" if act is not None else "")
            yield words, [one for one in (*members, act) if one is not None], {}, {}


def _siblings(links: Links) -> Iterator[Found]:
    """Linears that read one input: query, key and value, or gate and up."""
    by_input: dict[tuple[int, str], list[int]] = {}
    for node in links.nodes:
        maker = links.makers[node.index][0] if links.makers[node.index] else None
        if node.base == "linear" and node.phase == FORWARD and maker is not None:
            by_input.setdefault((maker, node.module.rpartition(".")[0]), []).append(node.index)
    for members in by_input.values():
        if len(members) > 1:
            yield "linears of one input", members, {}, {}


def _chains(links: Links) -> Iterator[Found]:
    """Elementwise operators of one size, one behind the other, of which nobody else needs what lies between."""
    taken: set[int] = set()
    for node in links.nodes:
        chain: list[int] = []
        at: int | None = node.index
        while at is not None and at not in taken and links.of(at, ELEMENTWISE) and links.nodes[at].outputs:
            if chain and links.nodes[at].outputs[0].sizes != links.nodes[chain[0]].outputs[0].sizes:
                break
            chain.append(at)
            at = links.users[at][0] if len(links.users[at]) == 1 else None
        if len(chain) > 1:
            taken |= set(chain)
            yield "elementwise chain", chain, {}, {}


FINDERS: tuple[Callable[[Links], Iterator[Found]], ...] = (
    _norms, _whole_norms, _gates, _activated, _rotary, _rotary_pairs, _attention, _losses, _convolutions, _siblings,
    _chains,
)  # fmt: skip
