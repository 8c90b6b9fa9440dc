"""A linalg operation's loops over its operands, as statements: element by element, reductions, products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opforge.forge.read.linalg_body import Scalar
from opforge.forge.read.linalg_loops import Loops
from opforge.forge.read.linalg_values import Operand, Tensor, Values
from opforge.forge.read.mlir import TensorType, Token
from opforge.forge.read.spelling import Spelled

NEUTRAL = {"sum": ("0.0", "(-0.0)"), "max": ("(-inf)",), "min": ("inf",)}
"""What a reduction may begin with and change nothing."""
WITH = {"sum": "{0} + {1}", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})"}


@dataclass(frozen=True, kw_only=True)
class Nest:
    """One linalg operation.

    keys    what its results are called
    kinds   the types of its results
    body    what it yields, of what its arguments are
    """

    token: Token
    keys: Sequence[str]
    loops: Loops
    ins: Sequence[Operand]
    outs: Sequence[Operand]
    kinds: Sequence[TensorType]
    body: Callable[[Sequence[Scalar], Sequence[Scalar]], Sequence[Scalar]]


def walked(values: Values, nest: Nest) -> list[Tensor]:
    """The results of a linalg operation. Raises UsageError for loops that no formula says."""
    return _Walk(values, nest).results()


class _Walk:
    def __init__(self, values: Values, nest: Nest) -> None:
        self.values, self.nest = values, nest
        self.axes = tuple(values.spelling.axis(None) for _ in nest.loops.kinds)
        values.loops.append((nest.token, self.axes))
        self.reduced = [axis for axis, kind in zip(self.axes, nest.loops.kinds, strict=True) if kind == "reduction"]
        self.maps = nest.loops.maps[len(nest.ins) :]

    def results(self) -> list[Tensor]:
        values, nest = self.values, self.nest
        operands = [values.held(one) for one in nest.ins]
        for operand, given, dims in zip(operands, nest.ins, nest.loops.maps, strict=False):
            values.laid(operand, dims, self.axes, given.name)
        self.sized()
        inside = [
            Scalar(text=operand.text, element=given.element) for operand, given in zip(operands, nest.ins, strict=True)
        ]
        # without a reduction, what an output held is one more operand
        before = [
            Scalar(text=_mark(at), element=kind.element, out=at if self.reduced else None)
            for at, kind in enumerate(nest.kinds)
        ]
        yielded = nest.body(inside, before)
        if len(yielded) != len(nest.outs):
            raise values.wrong(f"{len(nest.outs)} outputs, and {len(yielded)} values are yielded.", nest.token)
        return [self.result(at, value, operands) for at, value in enumerate(yielded)]

    def sized(self) -> None:
        """Outputs have every parallel loop once, and the sizes of the loops."""
        values, nest = self.values, self.nest
        parallel = [at for at, kind in enumerate(nest.loops.kinds) if kind == "parallel"]
        for out, dims, kind in zip(nest.outs, self.maps, nest.kinds, strict=True):
            if out.type != kind:
                raise values.wrong(f"{out.name.text} is of another type than the result.", out.name)
            values.known(out)
            if sorted(dims) != parallel:
                raise values.wrong("an output has every parallel loop once, and no reduction.", nest.token)
            values.laid(Spelled(text=out.name.text, axes=values.axes(kind)), dims, self.axes, out.name)

    def result(self, at: int, value: Scalar, operands: Sequence[Spelled]) -> Tensor:
        values, nest, kind = self.values, self.nest, self.nest.kinds[at]
        if value.element != kind.element:
            raise values.wrong(f"{value.element} is yielded for elements of {kind.element}.", nest.token)
        text = value.text
        if self.reduced:
            text, initial = self.reduction(at, value, operands), self.initial(at)
            if initial not in NEUTRAL[value.how]:
                text = WITH[value.how].format(initial, text)
        for number in range(len(nest.outs)):
            text = self.finished(number, text)
        axes = tuple(self.axes[one] for one in self.maps[at])
        key = nest.keys[at] if at < len(nest.keys) else "%value"
        return Tensor(type=kind, holds=values.let(key, text, axes))

    def initial(self, at: int) -> str:
        """What an output held before."""
        out = self.nest.outs[at]
        holds = self.values.held(out)
        self.values.laid(holds, self.maps[at], self.axes, out.name)
        return holds.text

    def finished(self, at: int, text: str) -> str:
        """The text, and statements that were made of it, with what an output held before in place of its mark."""
        statements = self.values.spelling.statements
        marked = [number for number, (_, expression) in enumerate(statements) if _mark(at) in expression]
        if marked or _mark(at) in text:
            initial = self.initial(at)
            for number in marked:
                name, expression = statements[number]
                statements[number] = (name, expression.replace(_mark(at), initial))
            text = text.replace(_mark(at), initial)
        return text

    def reduction(self, at: int, value: Scalar, operands: Sequence[Spelled]) -> str:
        """A reduction without what its output held before."""
        if value.of is None or value.out != at:
            raise self.values.wrong(
                "a reduction yields its output with one more term: arith.addf %out, %term.", self.nest.token
            )
        by_text = {one.text: one for one in operands if one.axes}
        factors = value.of.factors
        if value.how == "sum" and len(self.reduced) == 1 and len(factors) == 2 and set(factors) <= set(by_text):
            for first, second in (factors, factors[::-1]):
                if first != second and self.multiplies(by_text[first], by_text[second]):
                    return f"({first} @ {second})"
        text = value.of.text
        for loop in self.reduced:
            text = f"{value.how}({text}, {self.values.spelling.over(loop, self.values.cursor.where)})"
        return text

    def multiplies(self, a: Spelled, b: Spelled) -> bool:
        """Whether `a @ b` says the sum of their products: inputs whose one common axis is summed, the last of a."""
        spelling = self.values.spelling
        of_a, of_b = ([spelling.root(axis) for axis in one.axes if axis is not None] for one in (a, b))
        summed = spelling.root(self.reduced[0])
        inputs = a.text in spelling.inputs and b.text in spelling.inputs
        return inputs and set(of_a) & set(of_b) == {summed} and len(of_b) == 2 and of_a[-1] == summed


def _mark(at: int) -> str:
    return f"\x01{at}\x01"
