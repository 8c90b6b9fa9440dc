"""Formulas as people write them: `y = (x - mean(x)) * rsqrt(var(x) + eps) * w`, read into a tree.

A formula is one statement a line (or several with `;`), each `name = expression`. A name may say its axes where it
stands first: `x[*lead, cols]`. Nothing is evaluated here, and nothing of Python's is reached. Every error shows the
line with a caret under the column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from opforge.core.language.errors import UsageError

DEEPEST = 60
"""Parentheses in parentheses: beyond, a reader is lost, and so is Python's stack."""

LONGEST, MOST = 4000, 500
"""Letters and tokens of a formula: what comes after walks it without watching Python's stack."""

_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|\#[^\n]*)|(?P<end>[\n;])|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>\*\*|<=|>=|==|!=|[-+*/@<>=(),\[\]])"
)
_WORDS = ("and", "or", "not")
_LEVELS = (("or",), ("and",), ("<", "<=", ">", ">=", "==", "!="), ("+", "-"), ("*", "/", "@"))
_OTHERS = {"^": "a power is **", "&": "write: and", "|": "write: or", "!": "write: not", "?": "write: where(c, a, b)"}


class FormulaError(UsageError):
    """A formula that means nothing: the line, a caret under the column, and what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where something stands in a formula: a line and a column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, kw_only=True)
class Number:
    value: float
    place: Place


@dataclass(frozen=True, kw_only=True)
class Name:
    name: str
    place: Place


@dataclass(frozen=True, kw_only=True)
class Operation:
    """`-a`, `not a` (one argument), or two arguments with a sign between them."""

    sign: str
    arguments: tuple[Expression, ...]
    place: Place


@dataclass(frozen=True, kw_only=True)
class Call:
    """`function(arguments, axis=name)`; `axis` is None where it isn't said."""

    function: str
    arguments: tuple[Expression, ...]
    axis: Name | None
    place: Place


Expression = Number | Name | Operation | Call


@dataclass(frozen=True, kw_only=True)
class Statement:
    target: Name
    value: Expression


@dataclass(frozen=True, kw_only=True)
class Formula:
    """The statements in order, and the axes that were written beside names (`{"x": ("*lead", "cols")}`)."""

    text: str
    statements: tuple[Statement, ...]
    shapes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def error(self, message: str, place: Place) -> FormulaError:
        """The error to raise for what stands at `place`."""
        return pointed(self.text, message, place)


def pointed(text: str, message: str, place: Place) -> FormulaError:
    """An error that shows the line of `text` with a caret under the column."""
    lines = text.split("\n")
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    # tabs are one column wide in the count, and stay tabs so that the caret meets its letter
    before = "".join("\t" if letter == "\t" else " " for letter in line[: place.column - 1])
    return FormulaError(f"line {place.line}, column {place.column}: {message}\n    {line}\n    {before}^")


def parse(text: str) -> Formula:
    """The Formula that `text` says. Raises FormulaError that points at what doesn't parse.

    >>> parse("y = silu(x * 2)").statements[0].target.name
    'y'
    """
    if len(text) > LONGEST:
        raise UsageError(f"The formula has {len(text)} letters; {LONGEST} are read. Make two operators of it.")
    return _Parser(text).formula()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    place: Place


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    line, begins, at = 1, 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        place = Place(line=line, column=at - begins + 1)
        if match is None:
            letter = text[at]
            hint = _OTHERS.get(letter, "a formula has names, numbers, + - * / **, comparisons, parentheses and commas")
            raise pointed(text, f"{letter!r} has no meaning here; {hint}.", place)
        kind, word = str(match.lastgroup), match.group()
        if kind == "name" and word in _WORDS:
            kind = "sign"
        if kind != "space":
            found.append(_Token(kind, word, place))
        at = match.end()
        if word == "\n":
            line, begins = line + 1, at
    found.append(_Token("end", "", Place(line=line, column=len(text) - begins + 1)))
    if len(found) > MOST:
        raise pointed(text, f"the formula goes on after {MOST} words and signs. Make two operators.", found[MOST].place)
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.shapes = text, dict[str, tuple[str, ...]]()
        self.tokens, self.at, self.depth = _tokens(text), 0, 0

    @property
    def here(self) -> _Token:
        return self.tokens[self.at]

    def formula(self) -> Formula:
        statements: list[Statement] = []
        while True:
            while self.here.kind == "end" and self.here.text:
                self.at += 1
            if self.here.kind == "end":
                break
            statements.append(self.statement())
        if not statements:
            raise UsageError('The formula is empty. Write for example: "out = silu(x * scale + bias)".')
        return Formula(text=self.text, statements=tuple(statements), shapes=self.shapes)

    def statement(self) -> Statement:
        token = self.here
        if token.kind != "name":
            raise self.wrong(f"a statement begins with the name of a result, not {_shown(token)}: y = ...")
        target = self.name()
        if not self.take("="):
            raise self.wrong(f"'=' is missing after {target.name!r}, before {_shown(self.here)}: y = ...")
        value = self.expression(0)
        if self.here.kind != "end":
            raise self.wrong(self.surplus())
        return Statement(target=target, value=value)

    def surplus(self) -> str:
        """What to say of a token after a whole expression."""
        token = self.here
        if token.text == "=":
            return "there is a second '='; equality is ==, and each statement stands on a line of its own."
        if token.text == ")":
            return "this parenthesis was never opened. Remove it."
        if token.kind in ("name", "number") or token.text == "(":
            return f"an operation is missing before {_shown(token)}. Products are written with *."
        return f"{_shown(token)} cannot stand here. End the statement before it, or write an operation."

    def expression(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self.signed()
        left = self.negated() if _LEVELS[level] == ("and",) else self.expression(level + 1)
        while self.here.kind == "sign" and self.here.text in _LEVELS[level]:
            token = self.step()
            right = self.negated() if _LEVELS[level] == ("and",) else self.expression(level + 1)
            left = Operation(sign=token.text, arguments=(left, right), place=token.place)
            if level == 2 and self.here.text in _LEVELS[level]:
                raise self.wrong("comparisons do not chain. Write: a < b and b < c")
        return left

    def negated(self) -> Expression:
        if self.here.text == "not":
            token = self.step()
            return Operation(sign="not", arguments=(self.deeper(self.negated),), place=token.place)
        return self.expression(2)

    def signed(self) -> Expression:
        token = self.here
        if token.kind == "sign" and token.text in ("-", "+"):
            self.step()
            value = self.deeper(self.signed)
            return value if token.text == "+" else Operation(sign="-", arguments=(value,), place=token.place)
        base = self.primary()
        if self.here.text == "**":
            token = self.step()
            return Operation(sign="**", arguments=(base, self.deeper(self.signed)), place=token.place)
        return base

    def primary(self) -> Expression:
        token = self.here
        if token.kind == "number":
            self.step()
            value = float(token.text)
            if value > 3.4e38:
                raise pointed(
                    self.text, f"{token.text} is beyond float32. Write inf, or a smaller number.", token.place
                )
            return Number(value=value, place=token.place)
        if token.kind == "name":
            if self.tokens[self.at + 1].text == "(":
                return self.call()
            return self.name()
        if self.take("("):
            value_ = self.deeper(lambda: self.expression(0))
            if not self.take(")"):
                raise self.wrong(f"')' is missing before {_shown(self.here)}; it was opened {_at(token)}.")
            return value_
        raise self.wrong(f"a value is missing before {_shown(token)}: a name, a number or a function.")

    def call(self) -> Call:
        token = self.step()
        opened = self.step()
        arguments: list[Expression] = []
        axis: Name | None = None
        while self.here.text != ")":
            if self.here.text == "axis" and self.tokens[self.at + 1].text == "=":
                self.at += 2
                if self.here.kind != "name":
                    raise self.wrong(f"axis= takes the name of an axis, not {_shown(self.here)}.")
                axis = Name(name=self.here.text, place=self.step().place)
            elif axis is not None:
                raise self.wrong("axis= stands last.")
            else:
                arguments.append(self.deeper(lambda: self.expression(0)))
            if self.here.text != ")" and not self.take(","):
                raise self.wrong(f"')' or ',' is missing before {_shown(self.here)}; it was opened {_at(opened)}.")
        self.step()
        return Call(function=token.text, arguments=tuple(arguments), axis=axis, place=token.place)

    def name(self) -> Name:
        token = self.step()
        if self.here.text == "[":
            self.axes_of(token)
        return Name(name=token.text, place=token.place)

    def axes_of(self, token: _Token) -> None:
        opened = self.step()
        axes: list[str] = []
        while not self.take("]"):
            star = "*" if self.take("*") else ""
            if self.here.kind != "name":
                raise self.wrong(f"axes are names with commas between them, not {_shown(self.here)}: x[*lead, cols].")
            axes.append(star + self.step().text)
            if not self.take(",") and self.here.text != "]":
                raise self.wrong(f"']' is missing before {_shown(self.here)}; it was opened {_at(opened)}.")
        before = self.shapes.setdefault(token.text, tuple(axes))
        if before != tuple(axes):
            raise pointed(
                self.text, f"{token.text} has the axes {', '.join(before)} elsewhere. Say them once.", token.place
            )

    def deeper(self, read: Callable[[], Expression]) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.wrong(f"more than {DEEPEST} parentheses in each other. Name a part in a statement of its own.")
        value = read()
        self.depth -= 1
        return value

    def take(self, text: str) -> bool:
        if self.here.kind == "sign" and self.here.text == text:
            self.at += 1
            return True
        return False

    def step(self) -> _Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def wrong(self, message: str) -> FormulaError:
        return pointed(self.text, message, self.here.place)


def _shown(token: _Token) -> str:
    return repr(token.text) if token.text not in ("", "\n") else "the end"


def _at(token: _Token) -> str:
    return f"at line {token.place.line}, column {token.place.column}"
