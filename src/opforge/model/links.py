"""Which node feeds which: a graph's edges with views left out, since a view moves nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from opforge.core.definition.operator import Cost
from opforge.model.nodes import FORWARD, Graph, Node

CASTS = frozenset(("to", "_to_copy", "clone", "contiguous", "type_as", "float", "reshape", "copy"))
"""They keep the values (but for rounding)."""


class Links:
    """The edges of a graph.

    makers   for each node the maker of each of its inputs, views skipped; None for parameters and the model's inputs
    users    for each node those that read what it makes
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self.makers: list[tuple[int | None, ...]] = []
        self.users: dict[int, list[int]] = defaultdict(list)
        behind: list[int | None] = []
        for node in graph.nodes:
            makers = tuple(behind[source] if source is not None else None for source in node.sources)
            self.makers.append(makers)
            behind.append((makers[0] if makers else None) if node.is_view else node.index)
            if not node.is_view:
                for maker in dict.fromkeys(makers):
                    if maker is not None:
                        self.users[maker].append(node.index)

    def up(self, node: int | None, passed: list[int] | None = None) -> int | None:
        """The maker of a value through casts; those are added to `passed`."""
        while node is not None and self.nodes[node].base in CASTS:
            if passed is not None:
                passed.append(node)
            node = self.makers[node][0] if self.makers[node] else None
        return node

    def down(self, node: int, passed: list[int] | None = None) -> list[int]:
        """Those who read a value, through casts."""
        found = []
        for user in self.users[node]:
            if self.nodes[user].base in CASTS:
                if passed is not None:
                    passed.append(user)
                found += self.down(user, passed)
            else:
                found.append(user)
        return found

    def cost(self, members: Iterable[int]) -> Cost:
        """The least work of these nodes as one: inputs from outside are read once, what others need is written once."""
        group = set(members)
        read: dict[tuple[object, ...], int] = {}
        written = flops = 0
        for index in sorted(group):
            node = self.nodes[index]
            flops += node.work.cost.flops
            for shape, maker in zip(node.inputs, self.makers[index], strict=False):
                if maker not in group:
                    key = (maker,) if maker is not None else (shape.sizes, shape.dtype, node.module)
                    read[key] = max(read.get(key, 0), min(shape.bytes, node.work.cost.bytes_read))
            # a kernel with a gradient of its own keeps what went in for it, and nothing of what lies between
            others = [user for user in self.users[index] if user not in group]
            forward = [user for user in self.users[index] if self.nodes[user].phase == FORWARD]
            own = [user for user in others if user in forward] if node.phase == FORWARD and forward else others
            if own or not self.users[index]:
                written += sum(shape.bytes for shape in node.outputs)
        return Cost(flops=flops, bytes_read=sum(read.values()), bytes_written=written)

    def separate(self, members: Iterable[int]) -> int:
        """The bytes that these nodes move one by one."""
        return sum(self.nodes[index].work.cost.bytes for index in set(members))

    def of(self, index: int | None, bases: Sequence[str] | frozenset[str]) -> bool:
        """Whether a node is a call of one of these operators."""
        return index is not None and self.nodes[index].base in bases

    def node(self, index: int) -> Node:
        """A node by its index."""
        return self.nodes[index]
