"""What the names of a function hold: tensors as expressions with axes, numbers, and inputs as they are first read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.read.linalg_body import Scalar
from opforge.forge.read.mlir import FLOATS, Cursor, TensorType, Token
from opforge.forge.read.spelling import Spelled, Spelling

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor by its type, and what it holds: a name with axes, a number everywhere, or nothing yet (None)."""

    type: TensorType
    holds: Spelled | None

    @property
    def is_number(self) -> bool:
        return self.holds is not None and (self.holds.text == "inf" or not self.holds.text[:1].isalpha())


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A name between ins( ) or outs( ), with the type that is written for it."""

    name: Token
    type: TensorType | str

    @property
    def element(self) -> str:
        return self.type.element if isinstance(self.type, TensorType) else self.type


class Values:
    """Names and what they hold.

    arguments   those of the function; None without one, where a name that nothing gives is an input
    inputs      names that became inputs, in the order in which they were read
    loops       the axes that are walked together, which must not become one
    """

    def __init__(self, cursor: Cursor, arguments: Mapping[str, TensorType | str] | None) -> None:
        self.cursor, self.arguments = cursor, arguments
        self.spelling = Spelling()
        self.tensors: dict[str, Tensor] = {}
        self.numbers: dict[str, Scalar] = {}
        self.inputs: list[str] = []
        self.loops: list[tuple[Token, tuple[int, ...]]] = []

    def wrong(self, what: str, token: Token | None = None) -> UsageError:
        return self.cursor.wrong(what, token)

    def keep(self, key: str, value: Tensor | Scalar) -> None:
        if isinstance(value, Scalar):
            self.numbers[key] = value
        else:
            self.tensors[key] = value

    def taken(self, key: str) -> bool:
        return key in self.tensors or key in self.numbers or key in (self.arguments or {})

    def axes(self, kind: TensorType) -> tuple[int, ...]:
        return tuple(self.spelling.axis(size) for size in kind.dims)

    def let(self, key: str, text: str, axes: Sequence[int]) -> Spelled:
        """A statement named as the text names it."""
        plain = key[1:].replace("#", "_")
        return self.spelling.let(plain if not plain[:1].isdigit() else "value", text, axes)

    def known(self, operand: Operand) -> Tensor | None:
        """The tensor that a name stands for; None for an argument that nothing has read yet. Raises UsageError where
        the name stands for none, or for one of another type.
        """
        name, kind = operand.name, operand.type
        if not isinstance(kind, TensorType):
            raise self.wrong(f"{name.text} of {kind} is not read; give a tensor or a constant.", name)
        value = self.tensors.get(name.text)
        given = value.type if value is not None else (self.arguments or {}).get(name.text)
        if given is None and (self.arguments is not None or name.text in self.numbers):
            raise self.wrong(f"{name.text} is no tensor that stands before.", name)
        if given is not None and given != kind:
            raise self.wrong(f"{name.text} is of another type where it was made.", name)
        return value

    def held(self, operand: Operand) -> Spelled:
        """What an operand holds; an argument is an input from now on."""
        name = operand.name
        if name.text in self.numbers:
            number = self.numbers[name.text]
            if number.element != operand.type or operand.type not in FLOATS:
                raise self.wrong(f"{name.text} is a number of {number.element}; floats are read.", name)
            return Spelled(text=number.text)
        value = self.known(operand)
        assert isinstance(operand.type, TensorType)
        if value is None:
            try:
                holds = self.spelling.given(name.text[1:], operand.type.dims)
            except UsageError as error:
                raise self.wrong(str(error), name) from error
            self.inputs.append(name.text)
            value = self.tensors[name.text] = Tensor(type=operand.type, holds=holds)
        if value.holds is None:
            raise self.wrong(f"{name.text} is read and holds nothing yet; linalg.fill it first.", name)
        # a number has no axes that could meet those of another use
        return Spelled(text=value.holds.text, axes=self.axes(operand.type)) if value.is_number else value.holds

    def laid(self, operand: Spelled, dims: Sequence[int], walked: Sequence[int], token: Token) -> None:
        """Let an operand's axes be the loops that its map says."""
        if len(dims) != len(operand.axes):
            raise self.wrong(f"{token.text} has {len(operand.axes)} axes, its map {len(dims)}.", token)
        for axis, at in zip(operand.axes, dims, strict=True):
            assert axis is not None
            self.spelling.same(axis, walked[at], f"{self.cursor.where}, line {token.line}, {token.text}")

    def fields(self, results: Sequence[tuple[Token, Tensor]]) -> dict[str, Any]:
        """The fields of a definition that has these results. Raises UsageError where two loops became one, or inputs
        and outputs have several types of elements.
        """
        for token, walked in self.loops:
            if len({self.spelling.root(axis) for axis in walked}) != len(walked):
                raise self.wrong(
                    "two loops walk one axis (a tensor with itself transposed, or a diagonal); axes meet by name in "
                    "formulas.",
                    token,
                )
        where = f"{self.cursor.where}, line {results[0][0].line}"
        held = {name: holds for name in self.inputs if (holds := self.tensors[name].holds) is not None}
        # in the order of the function's arguments
        ordered = self.inputs if self.arguments is None else [one for one in self.arguments if one in held]
        self.spelling.inputs = {held[name].text: self.spelling.inputs[held[name].text] for name in ordered}
        fields = self.spelling.fields([tensor.holds for _, tensor in results if tensor.holds is not None], where)
        outside = {self.tensors[name].type.element for name in ordered if held[name].text in fields["inputs"]}
        outside |= {tensor.type.element for _, tensor in results}
        if len(outside) > 1:
            raise self.wrong(
                f"inputs and outputs are of {' and '.join(sorted(outside))}; operators have one dtype. Convert outside "
                "of it.",
                results[0][0],
            )
        (element,) = outside
        for token, other in self.cursor.elements:
            if other not in (element, "f32"):
                raise self.wrong(
                    f"elements of {other} between inputs and outputs of {element} are not read: kernels compute in "
                    "float32.",
                    token,
                )
        return {**fields, "dtypes": [DTYPES[element]]}
