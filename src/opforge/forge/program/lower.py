"""From a formula to a program: names are found, axes meet, composite functions are written out, common parts shared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from opforge.forge.program.composites import COMPOSITES, softplus, written_out
from opforge.forge.program.formula import Call, Expression, Formula, FormulaError, Name, Number, Operation, Place
from opforge.forge.program.ir import SCANS, Program, Value, Write

CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}
PRIMITIVES = (
    "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "abs", "sin", "cos", "tanh", "sigmoid", "erf", "erfc", "floor",
    "ceil",
)  # fmt: skip
SIGNS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq",
    "!=": "ne", "and": "and", "or": "or",
}  # fmt: skip
OVER_AN_AXIS = ("sum", "mean", "max", "min", "var", "std", "softmax", "log_softmax", "logsumexp", *SCANS)
FUNCTIONS = (*PRIMITIVES, *COMPOSITES, *OVER_AN_AXIS)
HIGHEST_POWER = 16
"""x ** 16 is four products; beyond, an exponential is meant."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a definition says of the names in its formula; shapes as tuples of axes.

    outputs   None: the last statement's result, with the axes that its value has
    """

    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...] | None]
    parameters: Mapping[str, float]


def lower(formula: Formula, declared: Declared) -> Program:
    """The Program of a formula. Raises FormulaError that points at what has no meaning."""
    return _Lowering(formula, declared).program()


class _Lowering:
    def __init__(self, formula: Formula, declared: Declared) -> None:
        self.formula, self.declared = formula, declared
        self.axes = order_of_axes(declared.inputs, declared.outputs)
        self.values: list[Value] = []
        self.numbers: dict[Value, int] = {}
        self.assigned: dict[str, tuple[int, Place]] = {}
        self.used: set[str] = set()

    def program(self) -> Program:
        for statement in self.formula.statements:
            target = statement.target
            if target.name in self.declared.inputs or target.name in self.declared.parameters:
                kind = "an input" if target.name in self.declared.inputs else "a parameter"
                raise self.wrong(f"{target.name!r} is {kind}. Give the result another name.", target.place)
            if target.name in self.assigned:
                raise self.wrong(f"{target.name!r} has a value already. Give this one another name.", target.place)
            if target.name in FUNCTIONS or target.name in CONSTANTS:
                raise self.wrong(f"{target.name!r} means something already. Give it another name.", target.place)
            self.assigned[target.name] = (self.lowered(statement.value), target.place)
        writes = tuple(self.write(name, axes) for name, axes in self.declared.outputs.items())
        for name, (_, place) in self.assigned.items():
            if name not in self.used and name not in self.declared.outputs:
                raise self.wrong(f"{name!r} is computed and used nowhere. Use it, or declare it as output.", place)
        for name in (*self.declared.inputs, *self.declared.parameters):
            if name not in self.used:
                last = self.formula.statements[-1].target.place
                raise self.wrong(f"{name!r} is declared, and the formula does not use it. Remove it, or use it.", last)
        names = tuple((number, name) for name, (number, _) in self.assigned.items())
        return _needed(
            Program(
                axes=self.axes,
                reads=tuple(self.declared.inputs.items()),
                parameters=tuple(self.declared.parameters.items()),
                values=tuple(self.values),
                writes=writes,
                names=names,
            )
        )

    def write(self, name: str, axes: tuple[str, ...] | None) -> Write:
        last = self.formula.statements[-1].target
        if name not in self.assigned:
            raise self.wrong(f"the output {name!r} is never computed. Add a statement: {name} = ...", last.place)
        number, place = self.assigned[name]
        value = self.values[number]
        if value.truth:
            raise self.wrong(f"{name!r} is a condition. Say its numbers: where(condition, 1, 0)", place)
        missing = [axis for axis in value.axes if axes is not None and axis not in axes]
        if missing:
            raise self.wrong(
                f"{name!r} has the axis {missing[0]}, which its shape [{', '.join(axes or ())}] leaves out. Add it, or "
                "reduce over it.",
                place,
            )
        if not value.axes:
            raise self.wrong(f"{name!r} is one number for the whole call. Keep an axis of an input.", place)
        return Write(name=name, value=number, axes=value.axes if axes is None else axes)

    def lowered(self, node: Expression) -> int:
        match node:
            case Number(value=value):
                return self.const(value)
            case Name():
                return self.named(node)
            case Operation(sign="**"):
                return self.power(node)
            case Operation(sign="-", arguments=(only,)):
                return self.checked("neg", node.place, self.lowered(only))
            case Operation(sign="not", arguments=(only,)):
                return self.checked("not", node.place, self.lowered(only))
            case Operation(sign="@"):
                return self.product(node)
            case Operation(sign=sign, arguments=arguments):
                return self.checked(SIGNS[sign], node.place, *(self.lowered(one) for one in arguments))
            case Call():
                return self.called(node)

    def named(self, node: Name) -> int:
        name = node.name
        self.used.add(name)
        if name in self.assigned:
            return self.assigned[name][0]
        if name in self.declared.inputs:
            axes = self.declared.inputs[name]
            return self.add(Value(operation="read", text=name, axes=tuple(axis for axis in self.axes if axis in axes)))
        if name in self.declared.parameters:
            return self.add(Value(operation="parameter", text=name))
        if name in CONSTANTS:
            return self.const(CONSTANTS[name])
        known = [*self.declared.inputs, *self.declared.parameters, *self.assigned]
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(known) or 'nothing'}."
        if name in FUNCTIONS:
            hint = f"It is a function: {name}(...)"
        raise self.wrong(f"{name!r} is no input, parameter or earlier result. {hint}", node.place)

    def power(self, node: Operation) -> int:
        base, exponent = self.lowered(node.arguments[0]), self.lowered(node.arguments[1])
        value = self.values[exponent]
        if value.operation != "const":
            raise self.wrong("a power's exponent is a number here. For others write exp(b * log(a))", node.place)
        number = value.number
        if number == 0.5:
            return self.checked("sqrt", node.place, base)
        if number == -0.5:
            return self.checked("rsqrt", node.place, base)
        if number != int(number) or not 1 <= abs(number) <= HIGHEST_POWER:
            raise self.wrong(
                f"the exponent {number:g} is none of 0.5, -0.5 and whole numbers from 1 to {HIGHEST_POWER}. For others "
                "write exp(b * log(a))",
                node.place,
            )
        result, square, left = None, base, int(abs(number))
        while left:
            if left % 2:
                result = square if result is None else self.checked("mul", node.place, result, square)
            left //= 2
            if left:
                square = self.checked("mul", node.place, square, square)
        assert result is not None
        return result if number > 0 else self.checked("div", node.place, self.const(1.0), result)

    def product(self, node: Operation) -> int:
        """`a @ b`: the products of a and b, summed over the last axis of a, which b has too."""
        left, right = (self.lowered(one) for one in node.arguments)
        a, b = self.values[left], self.values[right]
        if a.truth or b.truth:
            raise self.wrong("@ multiplies numbers, not conditions. Write where(c, 1, 0)", node.place)
        # as they lie in memory: a product's own order of axes has the summed one anywhere
        shape = self.declared.inputs.get(a.text, a.axes) if a.operation == "read" else a.axes
        if not shape or shape[-1] not in b.axes:
            raise self.wrong(
                f"@ sums over the last axis of its left side, [{', '.join(shape)}], and the right side, "
                f"[{', '.join(b.axes)}], lacks it. Give both the same name for it: a[m, k] @ b[k, n]",
                node.place,
            )
        over = shape[-1]
        axes = tuple(one for one in self.axes if one in (*a.axes, *b.axes) and one != over)
        return self.add(Value(operation="dot", arguments=(left, right), axes=axes, over=over))

    def called(self, node: Call) -> int:
        name, count = node.function, len(node.arguments)
        if name not in FUNCTIONS:
            near = get_close_matches(name, FUNCTIONS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(FUNCTIONS)}."
            raise self.wrong(f"{name!r} is no function. {hint}", node.place)
        if name in OVER_AN_AXIS:
            if count == 1:
                return self.over_axis(node, self.lowered(node.arguments[0]))
            hint = f" The larger or smaller of two: {name}imum(a, b)." if name in ("max", "min") else ""
            raise self.wrong(f"{name} takes one value, and axis=; {count} given.{hint}", node.place)
        if node.axis is not None:
            raise self.wrong(f"{name} works element by element and takes no axis. Remove it.", node.axis.place)
        least, most = COMPOSITES.get(name, (1, 1))
        if not least <= count <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise self.wrong(f"{name} takes {wanted} value{'s' * (most > 1)}; {count} given.", node.place)
        arguments = tuple(self.lowered(one) for one in node.arguments)
        if name == "where":
            return self.checked("where", node.place, *arguments)

        def op(operation: str, *of: int) -> int:
            return self.checked(operation, node.place, *of)

        return op(name, *arguments) if name in PRIMITIVES else written_out(name, op, self.const, arguments)

    def over_axis(self, node: Call, number: int) -> int:
        value = self.values[number]
        if value.truth:
            raise self.wrong(f"{node.function} takes numbers, not a condition. Write where(c, 1, 0)", node.place)
        if node.axis is not None:
            axis = next((one for one in value.axes if one.lstrip("*") == node.axis.name), None)
            if axis is None:
                raise self.wrong(
                    f"{node.axis.name!r} is no axis of what is reduced: [{', '.join(value.axes)}]. Name one of them.",
                    node.axis.place,
                )
        elif not value.axes:
            raise self.wrong(f"{node.function} reduces an axis, and this value has none.", node.place)
        else:
            axis = value.axes[-1]

        def op(operation: str, *of: int) -> int:
            return self.checked(operation, node.place, *of)

        def reduced(operation: str, of: int) -> int:
            axes = tuple(one for one in self.values[of].axes if one != axis)
            return self.add(Value(operation=operation, arguments=(of,), axes=axes, over=str(axis)))

        match node.function:
            case "var" | "std":
                centred = op("sub", number, reduced("mean", number))
                variance = reduced("mean", op("mul", centred, centred))
                return variance if node.function == "var" else op("sqrt", variance)
            case "softmax" | "log_softmax" | "logsumexp":
                top = reduced("max", number)
                shifted = op("sub", number, top)
                raised = op("exp", shifted)
                total = reduced("sum", raised)
                if node.function == "softmax":
                    return op("div", raised, total)
                left = shifted if node.function == "log_softmax" else top
                return op("sub" if node.function == "log_softmax" else "add", left, op("log", total))
            case name if name in SCANS:
                return self.add(Value(operation=name, arguments=(number,), axes=value.axes, over=str(axis)))
            case _:
                return reduced(node.function, number)

    def const(self, number: float) -> int:
        return self.add(Value(operation="const", number=number))

    def checked(self, operation: str, place: Place, *arguments: int) -> int:
        """An operation element by element on values that fit it; constants are folded."""
        given = [self.values[number] for number in arguments]
        truths = {"and": (True, True), "or": (True, True), "not": (True,), "where": (True, False, False)}
        for number, (value, wanted) in enumerate(zip(given, truths.get(operation, (False,) * len(given)), strict=True)):
            if value.truth != wanted:
                kind = "a condition, such as x > 0" if wanted else "a number; where(c, 1, 0) makes one of a condition"
                which = f" as {('first', 'second', 'third')[number]} value" if len(given) > 1 else ""
                raise self.wrong(f"{operation} takes{which} {kind}.", place)
        folded = _folded(operation, given)
        if folded is not None:
            if not math.isfinite(folded):
                raise self.wrong("these constants have no finite value. Change them.", place)
            return self.const(folded)
        kept = self.kept_near_zero(operation, place, arguments)
        if kept is not None:
            return kept
        axes = tuple(axis for axis in self.axes if any(axis in value.axes for value in given))
        return self.add(Value(operation=operation, arguments=arguments, axes=axes))

    def kept_near_zero(self, operation: str, place: Place, arguments: tuple[int, ...]) -> int | None:
        """`exp(x) - 1`, `log(1 + x)` and `log(1 + exp(x))` by functions that lose nothing near zero; None for others.
        In float32 1 + x is 1 where x is below 6e-8.
        """

        def op(name: str, *of: int) -> int:
            return self.checked(name, place, *of)

        given = [self.values[number] for number in arguments]
        match operation, [value.operation for value in given]:
            case "sub", ["exp", "const"] if given[1].number == 1.0:
                return op("expm1", given[0].arguments[0])
            case "sub", ["const", "exp"] if given[0].number == 1.0:
                return op("neg", op("expm1", given[1].arguments[0]))
            case "add", ["exp", "const"] | ["const", "exp"] if any(value.number == -1.0 for value in given):
                return op("expm1", next(value for value in given if value.operation == "exp").arguments[0])
            case "log", ["add"]:
                terms = [self.values[number] for number in given[0].arguments]
                ones = [value.operation == "const" and value.number == 1.0 for value in terms]
                if True not in ones:
                    return None
                rest = terms[ones.index(False)] if False in ones else terms[1]
                if rest.operation == "exp":
                    return softplus(op, self.const, rest.arguments[0])
                return op("log1p", self.numbers[rest])
            case "log1p", ["exp"]:
                # exp may overflow; of -|x| it doesn't
                inner = self.values[given[0].arguments[0]]
                return None if inner.operation == "neg" else softplus(op, self.const, given[0].arguments[0])
        return None

    def add(self, value: Value) -> int:
        if value not in self.numbers:
            self.numbers[value] = len(self.values)
            self.values.append(value)
        return self.numbers[value]

    def wrong(self, message: str, place: Place) -> FormulaError:
        return self.formula.error(message, place)


def _folded(operation: str, given: list[Value]) -> float | None:
    if any(value.operation != "const" for value in given):
        return None
    numbers = [value.number for value in given]
    functions: dict[str, Callable[..., float]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b if b else math.nan,
        "neg": lambda a: -a,
        "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
        "rsqrt": lambda a: 1 / math.sqrt(a) if a > 0 else math.nan,
        "exp": lambda a: math.exp(min(a, 1000.0)) if a < 700 else math.inf,
        "log": lambda a: math.log(a) if a > 0 else math.nan,
        "expm1": lambda a: math.expm1(a) if a < 700 else math.inf,
        "log1p": lambda a: math.log1p(a) if a > -1 else math.nan,
        "maximum": max,
        "minimum": min,
    }
    # -inf is the negative of a constant, and no slip
    if operation == "neg" and math.isinf(numbers[0]):
        return None
    return functions[operation](*numbers) if operation in functions else None


def order_of_axes(
    inputs: Mapping[str, tuple[str, ...]], outputs: Mapping[str, tuple[str, ...] | None]
) -> tuple[str, ...]:
    """The order in which values have their axes: the largest output's, the largest input's, then as they appear."""
    shapes = sorted((axes for axes in outputs.values() if axes), key=len, reverse=True)
    shapes += sorted(inputs.values(), key=len, reverse=True)
    most = max((len(axes) for axes in shapes), default=0)
    # an output that lost an axis by a reduction does not say where that axis was
    ordered = [axes for axes in shapes if len(axes) == most] + shapes
    return tuple(dict.fromkeys(axis for axes in ordered for axis in axes))


def _needed(program: Program) -> Program:
    """The program without values that nothing uses."""
    wanted = {write.value for write in program.writes}
    for number in range(len(program.values) - 1, -1, -1):
        if number in wanted:
            wanted |= set(program.values[number].arguments)
    kept = sorted(wanted)
    new = {old: position for position, old in enumerate(kept)}
    values = tuple(
        Value(**{**vars(program.values[old]), "arguments": tuple(new[one] for one in program.values[old].arguments)})
        for old in kept
    )
    return Program(
        axes=program.axes,
        reads=program.reads,
        parameters=program.parameters,
        values=values,
        writes=tuple(Write(name=write.name, value=new[write.value], axes=write.axes) for write in program.writes),
        names=tuple((new[old], name) for old, name in program.names if old in new),
    )
