"""MLIR text as tokens that know their lines, and the types, maps and constants that are written with them.

Every letter becomes a token or is an error, so that a reader sees all of a file or stops.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

from opforge.core.language.errors import UsageError
from opforge.forge.program.families import WAY_OUT

FLOATS = ("f32", "f16", "bf16")
"""Elements that generated kernels store."""

_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<value>%(?:[A-Za-z0-9_$.]|-(?!>))+(?:\#\d+)?)"
    r"|(?P<block>\^[A-Za-z0-9_$.]+)"
    r'|(?P<symbol>@(?:[A-Za-z0-9_$.-]+|"[^"]*"))'
    r"|(?P<number>-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))"
    r"|(?P<word>[#!]?[A-Za-z_][A-Za-z0-9_$.]*)"
    r"|(?P<sign>->|[-+*/(){}\[\]<>,:=?])"
)
_TENSOR = re.compile(r"tensor<((?:(?:\?|\d+)\s*x\s*)*)([A-Za-z]\w*)>")
_MAP = re.compile(r"affine_map<\s*\(([^()]*)\)\s*->\s*\(([^()]*)\)\s*>")
_PAIRS = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class TensorType:
    """dims: None where a dimension is dynamic."""

    dims: tuple[int | None, ...]
    element: str


class Cursor:
    """A walk over a text's tokens. Errors name the file and the line.

    aliases    "#map" -> the place of what it stands for
    elements   every type of floats that was met, and where
    """

    def __init__(self, text: str, where: str) -> None:
        self.where, self.at = where, 0
        self.aliases: dict[str, int] = {}
        self.elements: list[tuple[Token, str]] = []
        self.tokens = self._tokens(text)

    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    @property
    def following(self) -> Token:
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def wrong(self, what: str, token: Token | None = None) -> UsageError:
        return UsageError(f"{self.where}, line {(token or self.here).line}: {what} {WAY_OUT}")

    def step(self) -> Token:
        token = self.here
        if token.kind != "end":
            self.at += 1
        return token

    def sees(self, text: str) -> bool:
        return self.here.text == text and self.here.kind != "string"

    def take(self, text: str) -> bool:
        if self.sees(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.sees(text):
            raise self.wrong(f"{shown(self.here)} stands where {text!r} is expected; this form is not read.")
        return self.step()

    def kind(self, kind: str, what: str) -> Token:
        """The next token, which must be of a kind."""
        if self.here.kind != kind:
            raise self.wrong(f"{shown(self.here)} stands where {what} is expected; this form is not read.")
        return self.step()

    def over(self) -> None:
        """Step over one token, or over brackets and all that is in them."""
        opened = self.step()
        if opened.text not in _PAIRS or opened.kind != "sign":
            return
        waiting = [_PAIRS[opened.text]]
        while waiting:
            token = self.step()
            if token.kind == "end":
                raise self.wrong(f"the bracket {opened.text!r} is never closed.", opened)
            if token.kind == "sign" and token.text in _PAIRS:
                waiting.append(_PAIRS[token.text])
            elif token.kind == "sign" and token.text in _PAIRS.values() and token.text != waiting.pop():
                raise self.wrong(f"{token.text!r} closes what {opened.text!r} did not open.", token)

    def located(self) -> None:
        """Step over loc(...), which says where something came from."""
        if self.take("loc"):
            self.over()

    def names(self) -> list[Token]:
        """`%a, %b`: at least one."""
        found = [self.kind("value", "a value, %name,")]
        while self.take(","):
            found.append(self.kind("value", "a value, %name,"))
        return found

    def types(self, count: int) -> list[tuple[Token, TensorType | str]]:
        """`: type, type`, as many as there are values."""
        self.expect(":")
        found = [self.type()]
        while self.take(","):
            found.append(self.type())
        if len(found) != count:
            raise self.wrong(f"{count} values have {len(found)} types.")
        return found

    def type(self) -> tuple[Token, TensorType | str]:
        """A tensor's type, or the name of a scalar's."""
        token = self.kind("word", "a type")
        kind = self.tensor_type(token) if "<" in token.text else token.text
        element = kind.element if isinstance(kind, TensorType) else kind
        if element in FLOATS:
            self.elements.append((token, element))
        return token, kind

    def tensor_type(self, token: Token) -> TensorType:
        match = _TENSOR.fullmatch(token.text)
        if match is None:
            raise self.wrong(f"the type {token.text} is not read; tensors without an encoding are.", token)
        if match[2] not in FLOATS:
            raise self.wrong(f"elements of {match[2]} are not read; a formula's are of {', '.join(FLOATS)}.", token)
        dims = tuple(None if one.strip() == "?" else int(one) for one in match[1].split("x") if one.strip())
        if 0 in dims:
            raise self.wrong(f"{token.text} has no element.", token)
        return TensorType(dims, match[2])

    def map(self, token: Token) -> tuple[int, tuple[int, ...]]:
        """The number of a map's dimensions, and which of them each result is. Raises UsageError for other results."""
        if token.text in self.aliases:
            token = self.tokens[self.aliases[token.text]]
        match = _MAP.fullmatch(token.text)
        if match is None:
            raise self.wrong(f"{token.text} is not read; maps of plain dimensions are: (d0, d1) -> (d1).", token)
        names = [one.strip() for one in match[1].split(",") if one.strip()]
        results = [one.strip() for one in match[2].split(",") if one.strip()]
        for one in results:
            if one not in names:
                raise self.wrong(f"the map has {one!r}; plain dimensions are read, each by itself.", token)
        return len(names), tuple(names.index(one) for one in results)

    def number(self, token: Token, element: str) -> float:
        """A constant as its type holds it; float32 is left to the formula, which rounds alike."""
        text = token.text
        formats = {"f32": ("<I", "<f", 8), "f16": ("<H", "<e", 4)}
        try:
            if "0x" in text:
                whole, real, digits = formats.get(element, ("<I", "<f", 4))
                if text.startswith("-") or len(text) != digits + 2:
                    raise ValueError(text)
                bits = int(text, 16) << (16 if element == "bf16" else 0)
                value = float(struct.unpack(real, struct.pack(whole, bits))[0])
            else:
                value = _narrowed(float(text), element)
        except (ValueError, OverflowError) as error:
            raise self.wrong(f"the constant {text} is no number of {element} that is read.", token) from error
        if math.isnan(value):
            raise self.wrong("a constant of NaN is not read; formulas have none.", token)
        return value

    def _tokens(self, text: str) -> list[Token]:
        found: list[Token] = []
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.wrong(f"{text[at]!r} has no meaning here.", Token("", "", line))
            end = match.end()
            if match.lastgroup == "word" and text[end : end + 1] == "<":
                end = self._closed(text, end, line)
            if match.lastgroup != "space":
                found.append(Token(str(match.lastgroup), text[at:end], line))
            line += text.count("\n", at, end)
            at = end
        return [*found, Token("end", "", line)]

    def _closed(self, text: str, at: int, line: int) -> int:
        """Where the `<` at this place is closed; the arrow of a map closes nothing."""
        depth = 0
        for place in range(at, len(text)):
            if text[place] == "<":
                depth += 1
            elif text[place] == ">" and text[place - 1] != "-":
                depth -= 1
                if not depth:
                    return place + 1
        raise self.wrong("a '<' is never closed.", Token("", "", line))


def shown(token: Token) -> str:
    return f"{token.text:.60}" if token.text else "the end"


def written(value: float) -> str:
    """A number as an expression that holds together."""
    text = "inf" if math.isinf(value) else repr(abs(value))
    return f"(-{text})" if math.copysign(1.0, value) < 0 else text


def _narrowed(value: float, element: str) -> float:
    if element == "f16":
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    if element == "bf16":
        bits = int.from_bytes(struct.pack("<f", value), "little")
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", rounded))[0])
    struct.pack("<f", value)
    return value
