"""What a model's graph is made of: tensors by their shapes, nodes by their operator, and the work that each does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.operator import Cost

FORWARD, BACKWARD = "forward", "backward"
EXPORTED, JOINT, RECORDED = "exported", "joint", "recorded"
"""How a graph was had: torch.export; torch.export and AOTAutograd's joint graph; a call that was watched."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A tensor without contents. `strides` in elements; `itemsize` in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def elements(self) -> int:
        """How many elements it shows."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes that reading it once moves: an axis of stride 0 is one element."""
        return self.itemsize * math.prod(
            size for size, stride in zip(self.sizes, self.strides, strict=True) if stride or size == 0
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.sizes))}]"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a node must do at the least.

    cost   floating-point operations and bytes; without bytes it is a view, which nothing has to be done for
    unit   "matrix" or "vector": which of a device's arithmetic it can use
    """

    cost: Cost
    unit: str


@dataclass(frozen=True, kw_only=True)
class Node:
    """One call of an operator of PyTorch's.

    name          unique in its graph
    operator      "aten.linear.default"
    module        path of the module that it was called in, "" for the model itself; `module_class` is its class
    phase         "forward" or "backward"
    arguments     the call's, by the names of the operator's schema, a Shape for each tensor
    inputs        the tensors among them, in order
    sources       indices of the nodes that made those, None for parameters and inputs of the model
    outputs       what it returns
    uncounted     why its arithmetic is not counted, "" where it is
    """

    index: int
    name: str
    operator: str
    module: str
    module_class: str
    phase: str
    arguments: Mapping[str, Any]
    inputs: tuple[Shape, ...]
    sources: tuple[int | None, ...]
    outputs: tuple[Shape, ...]
    work: Work
    uncounted: str = ""

    @property
    def base(self) -> str:
        """The operator without namespace and overload: "linear"."""
        parts = self.operator.split(".")
        return parts[1] if len(parts) > 1 else self.operator

    @property
    def label(self) -> str:
        """The operator in few letters: names of attention's kernels take half a line."""
        if self.base == "scaled_dot_product_attention":
            return "sdpa"
        if not self.base.startswith("_scaled_dot_product_"):
            return self.base.lstrip("_") or self.base
        kernel = self.base.removeprefix("_scaled_dot_product_").removesuffix("_backward").removesuffix("_attention")
        backward = " backward" if self.base.endswith("_backward") else ""
        return f"sdpa{backward} ({kernel.replace('_attention_for_', ' ').replace('_', ' ')})"

    @property
    def place(self) -> str:
        """The last name of its module's path, "" for a layer that has only a number."""
        last = self.module.rpartition(".")[2]
        return "" if last.isdigit() else last

    @property
    def is_view(self) -> bool:
        """Whether it moves nothing: it only looks at a tensor in another way."""
        return self.work.cost.bytes == 0


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A model's nodes in the order of their execution.

    route   EXPORTED, JOINT or RECORDED
    why     why it was not exported, "" where it was
    note    how its work differs from that of a plain call of the model, and whose is not counted; "" for neither
    """

    nodes: tuple[Node, ...]
    route: str
    why: str
    training: bool
    note: str = ""

    @property
    def products(self) -> int:
        """The FLOPs of all products of matrices, attention and convolutions included."""
        return sum(node.work.cost.flops for node in self.nodes if node.work.unit == "matrix")
