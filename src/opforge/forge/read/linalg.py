"""Reads linalg text, the subset of MLIR that formulas say: parallel and reduction loops over affine maps of plain
dimensions, with arith and math operations in their bodies, and the named operations that are short for them.

One function, or operations without one. Every operation of it is read or is an error with its line: what is not
understood never becomes an input, and a file with several functions says so. Nothing is executed, and no MLIR is
needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import LONGEST_FILE, Definition, definition_of
from opforge.forge.read.linalg_body import Scalar, applied, body, constant, is_scalar, parsed
from opforge.forge.read.linalg_functions import Functions
from opforge.forge.read.linalg_loops import NAMED, traits
from opforge.forge.read.linalg_nest import Nest, walked
from opforge.forge.read.linalg_values import Operand, Tensor, Values
from opforge.forge.read.mlir import FLOATS, Cursor, TensorType, Token, shown
from opforge.forge.read.spelling import Spelled

EMPTY = ("tensor.empty", "bufferization.alloc_tensor", "linalg.init_tensor")


def read_linalg(path: Path, name: str, function: str = "") -> Definition:
    """The Definition that a file of linalg text says, for an operator called `name`. Raises UsageError with the line.

    function   which one of a file with several
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Give a file of MLIR text.") from error
    return linalg_in(text, name, str(path), function)


def linalg_in(text: str, name: str, where: str, function: str = "") -> Definition:
    """The same of a text."""
    if len(text) > LONGEST_FILE:
        raise UsageError(f"{where} has {len(text)} letters; a definition has less than {LONGEST_FILE}. Shorten it.")
    cursor = Cursor(text, where)
    arguments = Functions(cursor).chosen(function)
    values = Values(cursor, arguments)
    results = _Reader(values).operations("" if arguments is None else "}")
    fields = values.fields(results)
    try:
        return definition_of(fields, name, where)
    except UsageError as error:
        raise cursor.wrong(f"what is returned is no formula that has a meaning: {error}", results[0][0]) from error


class _Reader:
    """The operations of one function, in order."""

    def __init__(self, values: Values) -> None:
        self.values, self.cursor = values, values.cursor

    def wrong(self, what: str, token: Token | None = None) -> UsageError:
        return self.cursor.wrong(what, token)

    def operations(self, closed: str) -> list[tuple[Token, Tensor]]:
        """Every operation, up to what closes the function; what it returns."""
        cursor = self.cursor
        returned: list[tuple[Token, Tensor]] | None = None
        last = cursor.here
        while not (cursor.take(closed) if closed else cursor.here.kind == "end"):
            if returned is not None:
                raise self.wrong(f"{shown(cursor.here)} stands after return.")
            last = cursor.here
            returned = self.operation()
        if returned is None:
            raise self.wrong("nothing is returned. End with return %result : tensor<…>.", last)
        return returned

    def operation(self) -> list[tuple[Token, Tensor]] | None:
        """One operation; of return what it gives."""
        cursor = self.cursor
        results: list[tuple[Token, int]] = []
        if cursor.here.kind == "value":
            results.append(self.result())
            while cursor.take(","):
                results.append(self.result())
            cursor.expect("=")
        token = cursor.here
        if token.kind == "string":
            raise self.wrong(f"the form {token.text}(...) is not read; print it without --mlir-print-op-generic.")
        if not results and (cursor.take("return") or cursor.take("func.return")):
            return self.returned(token)
        keys = [name.text if count == 1 else f"{name.text}#{at}" for name, count in results for at in range(count)]
        for key in keys:
            if self.values.taken(key):
                raise self.wrong(f"{key} has a value already.", token)
        if not keys:
            raise self.wrong(f"{shown(token)} without a result is not read; formulas have values alone.")
        made = self.made(token, keys)
        cursor.located()
        if len(made) != len(keys):
            raise self.wrong(f"{token.text} has {len(made)} results; {len(keys)} names stand before it.", token)
        for key, value in zip(keys, made, strict=True):
            self.values.keep(key, value)
        return None

    def result(self) -> tuple[Token, int]:
        name = self.cursor.kind("value", "a result, %name,")
        if not self.cursor.take(":"):
            return name, 1
        count = self.cursor.kind("number", "how many results")
        if not count.text.isdigit() or not 1 <= int(count.text) <= 100:
            raise self.wrong(f"{count.text} is no number of results.", count)
        return name, int(count.text)

    def made(self, token: Token, keys: Sequence[str]) -> Sequence[Tensor | Scalar]:
        """The values of one operation."""
        name = token.text
        if is_scalar(name):
            return [self.elementwise(token, keys[0])]
        self.cursor.step()
        if name == "arith.constant":
            return [self.constant()]
        if name in EMPTY:
            return [self.empty()]
        if name == "tensor.dim":
            self.cursor.names()
            self.cursor.types(1)
            # loops have the sizes of their operands
            return [Scalar(text="", element="size")]
        if name == "linalg.fill":
            return [self.fill(token)]
        if name == "linalg.generic":
            return self.generic(token, keys)
        if name.startswith("linalg.") and name.removeprefix("linalg.") in NAMED:
            return self.named(token, keys)
        raise self.wrong(
            f"{shown(token)} is not read. Write it as linalg.generic. Read are linalg.fill, linalg.generic, "
            f"{', '.join(NAMED)}, and arith and math on tensors.",
            token,
        )

    def constant(self) -> Tensor | Scalar:
        cursor = self.cursor
        number = cursor.step()
        if number.text in ("true", "false"):
            raise self.wrong("a condition as a constant is not read.", number)
        cursor.expect(":")
        _, kind = cursor.type()
        if not isinstance(kind, TensorType):
            return constant(cursor, number, kind)
        inside = number.text.removeprefix("dense<").removesuffix(">").strip()
        if not number.text.startswith("dense<") or "[" in inside or '"' in inside:
            raise self.wrong(f"{shown(number)} is not read; tensors of one number, dense<0.5>, are.", number)
        text = constant(cursor, Token("number", inside, number.line), kind.element).text
        return Tensor(type=kind, holds=Spelled(text=text))

    def empty(self) -> Tensor:
        while not self.cursor.sees(":"):
            if self.cursor.here.kind == "end":
                raise self.wrong("a type is missing.")
            self.cursor.over()
        token, kind = self.cursor.types(1)[0]
        if not isinstance(kind, TensorType):
            raise self.wrong(f"{token.text} is no type of a tensor.", token)
        return Tensor(type=kind, holds=None)

    def fill(self, token: Token) -> Tensor:
        inputs, outs = self.listed("ins"), self.listed("outs")
        kinds = self.results_of(1)
        number = self.values.numbers.get(inputs[0].name.text) if inputs else None
        if len(inputs) != 1 or number is None or number.element not in FLOATS:
            raise self.wrong("linalg.fill is read with a constant of a float.", token)
        if len(outs) != 1 or outs[0].type != kinds[0] or {inputs[0].type, kinds[0].element} != {number.element}:
            raise self.wrong("linalg.fill has one output, of its number's type.", token)
        self.values.known(outs[0])
        return Tensor(type=kinds[0], holds=Spelled(text=number.text))

    def listed(self, word: str) -> list[Operand]:
        """`ins(%a, %b : tensor<…>, tensor<…>)`: the names, and their types."""
        cursor = self.cursor
        if not cursor.take(word):
            return []
        cursor.expect("(")
        if cursor.take(")"):
            return []
        names = cursor.names()
        types = cursor.types(len(names))
        cursor.expect(")")
        return [Operand(name=name, type=kind) for name, (_, kind) in zip(names, types, strict=True)]

    def results_of(self, count: int) -> list[TensorType]:
        """`-> tensor<…>`, or several in parentheses."""
        cursor = self.cursor
        if not cursor.sees("->"):
            raise self.wrong(f"{shown(cursor.here)} stands where a result is expected: -> tensor<…>.")
        cursor.step()
        several = cursor.take("(")
        found = [cursor.type()]
        while several and cursor.take(","):
            found.append(cursor.type())
        if several:
            cursor.expect(")")
        kinds = [kind for _, kind in found if isinstance(kind, TensorType)]
        if len(kinds) != count or len(found) != count:
            raise self.wrong(f"{count} outputs have {len(found)} results; tensors alone are read.")
        return kinds

    def elementwise(self, token: Token, key: str) -> Tensor:
        """arith or math on whole tensors."""
        operation = parsed(self.cursor)
        kinds = [one for one in operation.types if isinstance(one, TensorType)]
        if len(kinds) != len(operation.types):
            raise self.wrong(
                f"{token.text} of {operation.result} is not read outside of a body; on tensors it is.", token
            )
        axes = tuple(self.values.spelling.axis(size) for size in kinds[-1].dims)
        self.values.loops.append((token, axes))
        operands = [self.values.held(Operand(name=name, type=kinds[0])) for name in operation.values]
        for operand, name in zip(operands, operation.values, strict=True):
            self.values.laid(operand, range(len(axes)), axes, name)
        given = [Scalar(text=one.text, element=kinds[0].element) for one in operands]
        value = applied(self.cursor, operation, given)
        return Tensor(type=kinds[-1], holds=self.values.let(key, value.text, axes))

    def named(self, token: Token, keys: Sequence[str]) -> list[Tensor]:
        ins, outs = self.listed("ins"), self.listed("outs")
        if not ins or not outs:
            raise self.wrong(f"{token.text} is read as ins(…) outs(…), without attributes.", token)
        kinds = self.results_of(1)
        loops = NAMED[token.text.removeprefix("linalg.")].of_rank(len(kinds[0].dims))
        ranks = [len(one.type.dims) if isinstance(one.type, TensorType) else -1 for one in (*ins, *outs)]
        if [len(one) for one in loops.maps] != ranks or len({one.element for one in ins}) != 1:
            raise self.wrong(f"{token.text} is not read with operands of these types.", token)
        element = ins[0].element
        nest = Nest(
            token=token, keys=keys, loops=loops, ins=ins, outs=outs, kinds=kinds,
            body=lambda inside, before: loops.body(self.cursor, token, inside, before, element),
        )  # fmt: skip
        return walked(self.values, nest)

    def generic(self, token: Token, keys: Sequence[str]) -> list[Tensor]:
        cursor = self.cursor
        loops = traits(cursor, token)
        ins, outs = self.listed("ins"), self.listed("outs")
        if cursor.take("attrs"):
            cursor.expect("=")
            cursor.over()
        if len(loops.maps) != len(ins) + len(outs) or not outs:
            raise self.wrong("one map for each operand and one for each output are expected.", token)
        # results stand after the body
        start = cursor.at
        cursor.over()
        kinds = self.results_of(len(outs))
        end, cursor.at = cursor.at, start

        def named(text: str) -> str:
            return self.values.let("%part", text, ()).text

        made = walked(
            self.values,
            Nest(
                token=token, keys=keys, loops=loops, ins=ins, outs=outs, kinds=kinds,
                body=lambda inside, before: body(cursor, [*inside, *before], self.values.numbers, named),
            ),
        )  # fmt: skip
        cursor.at = end
        return made

    def returned(self, token: Token) -> list[tuple[Token, Tensor]]:
        cursor, values = self.cursor, self.values
        if cursor.here.kind != "value":
            raise self.wrong("the function returns nothing; results in memory (memref) are not read.", token)
        names = cursor.names()
        types = cursor.types(len(names))
        cursor.located()
        found: list[tuple[Token, Tensor]] = []
        for name, (place, kind) in zip(names, types, strict=True):
            value = values.tensors.get(name.text)
            if value is None or value.holds is None or value.is_number or name.text in values.inputs:
                raise self.wrong(f"{name.text} is returned and is no result of a linalg operation.", name)
            if value.type != kind:
                raise self.wrong(f"{name.text} is returned as another type than it is.", place)
            found.append((name, value))
        if len({name.text for name in names}) != len(names):
            raise self.wrong("one result is returned twice; return it once.", token)
        return found
