"""Reads linalg.generic text, the subset of MLIR that formulas say: parallel and reduction loops over affine maps of
plain dimensions, with arith and math operations in their bodies.

One function (or none) with one linalg.generic after another. Inits are tensor.empty, or linalg.fill of what a reduction
begins with. Nothing is executed, and no MLIR is needed.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import LONGEST_FILE, Definition, definition_of
from opforge.forge.program.families import WAY_OUT
from opforge.forge.read.spelling import Spelled, Spelling

BINARY = {"addf": "+", "subf": "-", "mulf": "*", "divf": "/"}
CHOSEN = {"maximumf": "maximum", "minimumf": "minimum"}
MATH = {name: name for name in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil")}
MATH["absf"] = "abs"
COMPARED = {"ogt": ">", "oge": ">=", "olt": "<", "ole": "<=", "oeq": "==", "une": "!="}
LOGIC = {"andi": "and", "ori": "or"}
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}

_NAME = r"%[A-Za-z0-9_$.#-]+"
_MAP = re.compile(r"(#\w+)\s*=\s*affine_map<\(([^)]*)\)\s*->\s*\(([^)]*)\)>")
_MAP_HERE = re.compile(r"#\w+|affine_map<\(([^)]*)\)\s*->\s*\(([^)]*)\)>")
_CONSTANT = re.compile(rf"({_NAME})\s*=\s*arith\.constant\s+(\S+)\s*:\s*(?:f16|bf16|f32|f64)\b")
_EMPTY = re.compile(rf"({_NAME})\s*=\s*(?:tensor\.empty|bufferization\.alloc_tensor)\b")
_FILL = re.compile(rf"({_NAME})\s*=\s*linalg\.fill\s+ins\(\s*({_NAME})\s*:[^)]*\)\s*outs\(\s*({_NAME})\s*:[^)]*\)")
_GENERIC = re.compile(
    rf"({_NAME})\s*=\s*linalg\.generic\s*\{{(?P<attributes>.*?)\}}\s*"
    r"(?:ins\((?P<ins>[^)]*)\)\s*)?outs\((?P<outs>[^)]*)\)"
    r"\s*(?:attrs\s*=\s*\{[^}]*\}\s*)?\{(?P<body>.*?)\}\s*->\s*(?P<type>tensor<[^>]*>)",
    re.DOTALL,
)
_ARGUMENT = re.compile(rf"({_NAME})\s*:\s*tensor<([^>]*)>")
_STEP = re.compile(rf"({_NAME})\s*=\s*(arith|math)\.(\w+)\s+(.*)")


def read_linalg(path: Path, name: str) -> Definition:
    """The Definition that a file of linalg.generic text says, for an operator called `name`. Raises UsageError with the
    line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Give a file of MLIR text.") from error
    return linalg_in(text, name, str(path))


def linalg_in(text: str, name: str, where: str) -> Definition:
    """The same of a text."""
    if len(text) > LONGEST_FILE:
        raise UsageError(f"{where} has {len(text)} letters; a definition has less than {LONGEST_FILE}. Shorten it.")
    return definition_of(_Reader(re.sub(r"//[^\n]*", "", text), where).fields(), name, where)


class _Reader:
    """One text: constants, maps, and generics in order."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.maps = {match[1]: self.dims(match[2], match[3], match.start()) for match in _MAP.finditer(text)}
        self.spelling = Spelling()
        self.values: dict[str, Spelled] = {}
        self.fills: dict[str, float] = {}
        self.constants = {match[1]: self.number(match[2], match.start()) for match in _CONSTANT.finditer(text)}
        self.empty = {match[1] for match in _EMPTY.finditer(text)}

    def wrong(self, what: str, place: int) -> UsageError:
        return UsageError(f"{self.where}, line {self.text[:place].count(chr(10)) + 1}: {what} {WAY_OUT}")

    def number(self, text: str, place: int) -> float:
        if text.lower().startswith("0x"):
            known = {"0x7F800000": math.inf, "0xFF800000": -math.inf}
            if text not in known:
                raise self.wrong(f"the constant {text} is read in decimals alone.", place)
            return known[text]
        try:
            return float(text)
        except ValueError as error:
            raise self.wrong(f"{text} is no number that is read.", place) from error

    def dims(self, left: str, right: str, place: int) -> tuple[int, ...]:
        names = [one.strip() for one in left.split(",")]
        results = [one.strip() for one in right.split(",") if one.strip()]
        for one in results:
            if one not in names:
                raise self.wrong(f"the map has {one!r}; plain dimensions are read, each by itself.", place)
        return tuple(names.index(one) for one in results)

    def fields(self) -> dict[str, Any]:
        """The fields of a definition."""
        generics = list(_GENERIC.finditer(self.text))
        written = self.text.count("linalg.generic")
        if not generics or len(generics) < written:
            raise self.wrong(f"{written} linalg.generic stand here, {len(generics)} of a form that is read.", 0)
        for match in re.finditer(r"linalg\.(\w+)", self.text):
            if match[1] not in ("generic", "fill", "yield"):
                raise self.wrong(f"linalg.{match[1]} is not read; write it as linalg.generic.", match.start())
        for match in _FILL.finditer(self.text):
            if match[2] not in self.constants:
                raise self.wrong(f"linalg.fill takes {match[2]}, which is no constant.", match.start())
            self.fills[match[1]] = self.constants[match[2]]
        returned = re.search(rf"\breturn\s+({_NAME}(?:\s*,\s*{_NAME})*)", self.text)
        for match in generics:
            self.values[match[1]] = self.generic(match)
        names = [one.strip() for one in returned[1].split(",")] if returned else [generics[-1][1]]
        for one in names:
            if one not in self.values:
                raise self.wrong(
                    f"{one} is returned and is no result of a linalg.generic.", returned.start(1) if returned else 0
                )
        return self.spelling.fields([self.values[one] for one in names])

    def tensor(self, name: str, kind: str, place: int) -> Spelled:
        """What a name means: an earlier result, or an input, which it is from now on."""
        if name in self.empty or name in self.fills:
            raise self.wrong(f"{name} is read as an input and holds nothing yet.", place)
        if name not in self.values:
            parts = kind.split("x")
            if parts[-1] not in ("f16", "bf16", "f32", "f64"):
                raise self.wrong(f"{name} has elements of {parts[-1]}; formulas take floats.", place)
            self.values[name] = self.spelling.given(name[1:], [None if one == "?" else int(one) for one in parts[:-1]])
        return self.values[name]

    def generic(self, match: re.Match[str]) -> Spelled:
        place = match.start()
        attributes = match["attributes"]
        listed = re.search(r"indexing_maps\s*=\s*\[(.*?)\]\s*,\s*iterator_types", attributes, re.DOTALL)
        kinds = re.search(r"iterator_types\s*=\s*\[(.*?)\]", attributes, re.DOTALL)
        if listed is None or kinds is None:
            raise self.wrong("indexing_maps, then iterator_types are expected.", place)
        iterators = re.findall(r'"(\w+)"', kinds[1])
        maps = [self.map_of(one, place) for one in _MAP_HERE.finditer(listed[1])]
        operands = [self.tensor(one[1], one[2].strip(), place) for one in self.listed(match["ins"] or "", place)]
        outs = self.listed(match["outs"], place)
        if len(maps) != len(operands) + 1 or len(outs) != 1:
            raise self.wrong("one map for each operand and one output are expected.", place)
        loops = [self.spelling.axis(None) for _ in iterators]
        for operand, dims in zip(operands, maps, strict=False):
            if len(dims) != len(operand.axes):
                raise self.wrong(f"{operand.text} has {len(operand.axes)} axes, its map {len(dims)}.", place)
            for axis, at in zip(operand.axes, dims, strict=True):
                assert axis is not None
                self.spelling.same(axis, loops[at], f"{self.where}, {match[1]}")
        reduced = [at for at, kind in enumerate(iterators) if kind == "reduction"]
        strange = [kind for kind in iterators if kind not in ("parallel", "reduction")]
        if strange or len(reduced) > 1 or set(reduced) & set(maps[-1]):
            raise self.wrong("loops are parallel, and at most one is a reduction that the output does not have.", place)
        body = self.body(match["body"], operands, place)
        axes = tuple(loops[at] for at in maps[-1])
        wanted = match[1][1:] if not match[1][1:].isdigit() else "value"
        if not reduced:
            used = {self.spelling.root(axis) for operand in operands for axis in operand.axes if axis is not None}
            if {self.spelling.root(axis) for axis in axes} - used:
                raise self.wrong("the output has an axis that no operand has.", place)
            if body[1] is not None:
                raise self.wrong("the body uses what the output held before, without a reduction.", place)
            return self.spelling.let(wanted, body[0], axes)
        return self.reduction(wanted, body, operands, loops[reduced[0]], axes, outs[0][1], place)

    def reduction(
        self, wanted: str, body: tuple[str, str | None, tuple[str, ...]], operands: list[Spelled], loop: int,
        axes: tuple[int, ...], init: str, place: int,
    ) -> Spelled:  # fmt: skip
        text, how, factors = body
        if how is None:
            raise self.wrong("a reduction yields its output with one more term: arith.addf %out, %term.", place)
        if self.fills.get(init, math.nan) != NEUTRAL[how]:
            raise self.wrong(f"the reduction begins with {init}; linalg.fill it with {NEUTRAL[how]:g} first.", place)
        by_text = {one.text: one for one in operands}
        if how == "sum" and len(factors) == 2 and set(factors) <= set(by_text) and factors[0] != factors[1]:
            a, b = (by_text[one] for one in factors)
            shared = {self.spelling.root(axis) for axis in a.axes if axis is not None}
            shared &= {self.spelling.root(axis) for axis in b.axes if axis is not None}
            summed, last = self.spelling.root(loop), a.axes[-1]
            if shared == {summed} and len(b.axes) == 2 and last is not None and self.spelling.root(last) == summed:
                return self.spelling.let(wanted, f"{a.text} @ {b.text}", axes)
        over = self.spelling.over(loop, f"{self.where}, %{wanted}")
        return self.spelling.let(wanted, f"{how}({text}, {over})", axes)

    def map_of(self, match: re.Match[str], place: int) -> tuple[int, ...]:
        if match[0].startswith("#"):
            if match[0] not in self.maps:
                raise self.wrong(f"{match[0]} is no map that is defined.", place)
            return self.maps[match[0]]
        return self.dims(match[1], match[2], place)

    def listed(self, text: str, place: int) -> list[tuple[str, str, str]]:
        """(all, name, type) of `%a, %b : tensor<…>, tensor<…>`."""
        names, _, types = text.partition(":")
        found = re.findall(r"tensor<([^>]*)>", types)
        called = [one.strip() for one in names.split(",") if one.strip()]
        if len(found) != len(called):
            raise self.wrong(f"operands and types do not match: {text.strip()[:60]}.", place)
        return [(name, name, kind) for name, kind in zip(called, found, strict=True)]

    def body(self, text: str, operands: list[Spelled], place: int) -> tuple[str, str | None, tuple[str, ...]]:
        """What a body yields: the expression, how it is added to the output ("sum", "max", "min"; None: it is not), and
        the two factors where it is a product of two operands.
        """
        head = re.search(r"\^\w+\(([^)]*)\)\s*:", text)
        if head is None:
            raise self.wrong("the body has no ^bb0(...): line.", place)
        arguments = [one.split(":")[0].strip() for one in head[1].split(",")]
        if len(arguments) != len(operands) + 1:
            raise self.wrong("the body takes one argument for each operand and one for the output.", place)
        *inside, out = arguments
        known: dict[str, str] = {key: one.text for key, one in zip(inside, operands, strict=True)}
        known.update({key: _number(value) for key, value in self.constants.items()})
        for match in _CONSTANT.finditer(text):
            known[match[1]] = _number(self.number(match[2], place))
        products: dict[str, tuple[str, ...]] = {}
        ends: dict[str, tuple[str, str, str]] = {}
        for line in text[head.end() :].splitlines():
            step = _STEP.match(line.strip())
            if step is None or step[3] == "constant":
                continue
            kind, given = step[3], re.findall(_NAME, step[4])
            if out in given:
                how = {"addf": "sum", "maximumf": "max", "minimumf": "min"}.get(kind)
                term = next((one for one in given if one != out), "")
                if how is None or len(given) != 2 or term not in known:
                    raise self.wrong(f"{step[2]}.{kind} of the output is no sum, maximumf or minimumf.", place)
                ends[step[1]] = (how, known[term], term)
                continue
            missing = [one for one in given if one not in known]
            if missing:
                raise self.wrong(f"{missing[0]} is not known in this body.", place)
            known[step[1]] = self.step(kind, step[4], [known[one] for one in given], place)
            if kind == "mulf":
                products[step[1]] = tuple(known[one] for one in given)
        result = re.search(rf"linalg\.yield\s+({_NAME})", text)
        if result is None or (result[1] not in known and result[1] not in ends):
            raise self.wrong("the body yields nothing that is known.", place)
        if result[1] in ends:
            how, expression, term = ends[result[1]]
            return expression, how, products.get(term, ())
        return known[result[1]], None, ()

    def step(self, kind: str, rest: str, given: list[str], place: int) -> str:
        """One operation of arith or math as an expression that holds together."""
        if kind in BINARY:
            return f"({given[0]} {BINARY[kind]} {given[1]})"
        if kind in LOGIC:
            return f"({given[0]} {LOGIC[kind]} {given[1]})"
        if kind in CHOSEN:
            return f"{CHOSEN[kind]}({given[0]}, {given[1]})"
        if kind in MATH:
            return f"{MATH[kind]}({given[0]})"
        match kind:
            case "negf":
                return f"(-{given[0]})"
            case "select":
                return f"where({', '.join(given)})"
            case "cmpf":
                how = rest.split(",")[0].strip()
                if how not in COMPARED:
                    raise self.wrong(f"arith.cmpf {how} is not read; {', '.join(COMPARED)} are.", place)
                return f"({given[0]} {COMPARED[how]} {given[1]})"
            case "powf" | "fpowi":
                return f"({given[0]} ** {given[1]})"
            case "extf":
                return given[0]
        raise self.wrong(f"{kind} is no operation that a formula has.", place)


def _number(value: float) -> str:
    text = "inf" if math.isinf(value) else repr(abs(value))
    return f"(-{text})" if value < 0 else text
