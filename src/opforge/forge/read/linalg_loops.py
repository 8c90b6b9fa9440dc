"""The loops of a linalg operation: as linalg.generic writes them, or those that a named operation is short for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opforge.forge.read.linalg_body import Operation, Scalar, applied
from opforge.forge.read.mlir import Cursor, Token


@dataclass(frozen=True, kw_only=True)
class Loops:
    """What is walked: a kind for each loop, a map for each operand and output.

    operation   of a named one, what is done to the elements: "mulf"; summed where a loop is a reduction
    """

    kinds: tuple[str, ...]
    maps: tuple[tuple[int, ...], ...]
    operation: str = ""

    def of_rank(self, rank: int) -> Loops:
        """Loops of an operation that takes tensors of any rank."""
        if self.kinds:
            return self
        return replace(self, kinds=("parallel",) * rank, maps=(tuple(range(rank)),) * len(self.maps))

    def body(
        self, cursor: Cursor, token: Token, given: Sequence[Scalar], outs: Sequence[Scalar], element: str
    ) -> list[Scalar]:
        """What the body of a named operation yields."""
        if self.operation == "square":
            given = [given[0], given[0]]
        name = "mulf" if self.operation == "square" else self.operation
        value = applied(cursor, Operation(name=name, token=token, values=(), predicate="", types=(element,)), given)
        if "reduction" not in self.kinds:
            return [replace(value, element=outs[0].element)]
        return [replace(outs[0], how="sum", of=replace(value, element=outs[0].element))]


def traits(cursor: Cursor, token: Token) -> Loops:
    """`{indexing_maps = […], iterator_types = […]}` of linalg.generic, or an alias of it. Raises UsageError."""
    if cursor.here.text in cursor.aliases:
        after, cursor.at = cursor.at + 1, cursor.aliases[cursor.here.text]
        found = traits(cursor, token)
        cursor.at = after
        return found
    maps: list[tuple[int, tuple[int, ...]]] = []
    kinds: list[str] = []
    cursor.expect("{")
    while not cursor.take("}"):
        key = cursor.kind("word", "indexing_maps or iterator_types")
        cursor.expect("=")
        if key.text in ("doc", "library_call"):
            cursor.step()
        elif key.text == "indexing_maps":
            maps = [cursor.map(one) for one in _list(cursor)]
        elif key.text == "iterator_types":
            words = [one.text.removeprefix("#linalg.iterator_type<").removesuffix(">") for one in _list(cursor)]
            kinds = [one.strip('"') for one in words]
        else:
            raise cursor.wrong(f"the attribute {key.text} of linalg.generic is not read.", key)
        if not cursor.sees("}"):
            cursor.expect(",")
    if {count for count, _ in maps} != {len(kinds)}:
        raise cursor.wrong("indexing_maps and iterator_types of one number of loops are expected.", token)
    strange = [kind for kind in kinds if kind not in ("parallel", "reduction")]
    if strange:
        raise cursor.wrong(f"a loop is {strange[0]!r}; loops are parallel or reduction.", token)
    return Loops(kinds=tuple(kinds), maps=tuple(results for _, results in maps))


def _list(cursor: Cursor) -> list[Token]:
    opened = cursor.expect("[")
    found: list[Token] = []
    while not cursor.take("]"):
        found.append(cursor.step())
        if found[-1].kind == "end":
            raise cursor.wrong("a list is never closed.", opened)
        if not cursor.sees("]"):
            cursor.expect(",")
    return found


def _product(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...]) -> Loops:
    count = max((*a, *b)) + 1
    kinds = tuple("parallel" if at in out else "reduction" for at in range(count))
    return Loops(kinds=kinds, maps=(a, b, out), operation="mulf")


NAMED: dict[str, Loops] = {
    "matmul": _product((0, 2), (2, 1), (0, 1)),
    "matmul_transpose_a": _product((2, 0), (2, 1), (0, 1)),
    "matmul_transpose_b": _product((0, 2), (1, 2), (0, 1)),
    "batch_matmul": _product((0, 1, 3), (0, 3, 2), (0, 1, 2)),
    "batch_matmul_transpose_b": _product((0, 1, 3), (0, 2, 3), (0, 1, 2)),
    "matvec": _product((0, 1), (1,), (0,)),
    "vecmat": _product((1,), (1, 0), (0,)),
}
NAMED |= {
    name: Loops(kinds=(), maps=((),) * 3, operation=operation)
    for name, operation in {
        "add": "addf", "sub": "subf", "mul": "mulf", "div": "divf", "max": "maximumf", "min": "minimumf",
    }.items()
}  # fmt: skip
NAMED |= {
    name: Loops(kinds=(), maps=((),) * 2, operation=operation)
    for name, operation in {
        "exp": "exp", "log": "log", "abs": "absf", "ceil": "ceil", "floor": "floor", "negf": "negf", "sqrt": "sqrt",
        "rsqrt": "rsqrt", "square": "square", "tanh": "tanh", "erf": "erf",
    }.items()
}  # fmt: skip
