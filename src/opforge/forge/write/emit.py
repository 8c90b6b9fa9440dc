"""Values of a program as text in a language: what is used once and short stands in place, the rest has a name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from opforge.forge.program.ir import Program, Value
from opforge.forge.program.lower import PRIMITIVES

INLINE = 34
"""Letters of an expression that still reads well inside another one."""

ATOM, POSTFIX, SIGNED, PRODUCT, SUM, COMPARED, LOOSE = 10, 9, 8, 7, 6, 4, 0
"""How tightly an expression holds together: what is looser than its place asks for gets parentheses."""

_SHARED: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "add": ("{0} + {1}", SUM, (SUM, PRODUCT)),
    "sub": ("{0} - {1}", SUM, (SUM, PRODUCT)),
    "mul": ("{0} * {1}", PRODUCT, (PRODUCT, SIGNED)),
    "div": ("{0} / {1}", PRODUCT, (PRODUCT, SIGNED)),
    "neg": ("-{0}", SIGNED, (POSTFIX,)),
    "lt": ("{0} < {1}", COMPARED, (SUM, SUM)),
    "le": ("{0} <= {1}", COMPARED, (SUM, SUM)),
    "gt": ("{0} > {1}", COMPARED, (SUM, SUM)),
    "ge": ("{0} >= {1}", COMPARED, (SUM, SUM)),
    "eq": ("{0} == {1}", COMPARED, (SUM, SUM)),
    "ne": ("{0} != {1}", COMPARED, (SUM, SUM)),
    "and": ("{0} & {1}", SUM - 1, (POSTFIX, POSTFIX)),
    "or": ("{0} | {1}", SUM - 2, (POSTFIX, POSTFIX)),
    "not": ("~{0}", SIGNED, (POSTFIX,)),
}


def _calls(form: str, *operations: str) -> dict[str, tuple[str, int, tuple[int, ...]]]:
    return {name: (form.replace("NAME", name), POSTFIX, (LOOSE,) * 3) for name in operations}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a language writes operations (template, how tightly it holds, what its arguments need), numbers and names."""

    forms: Mapping[str, tuple[str, int, tuple[int, ...]]]
    number: Callable[[float], str]
    named: str


def _python_number(value: float) -> str:
    return f'float("{value}")' if math.isinf(value) else repr(value)


def _cpp_number(value: float) -> str:
    return ("-" if value < 0 else "") + "INFINITY" if math.isinf(value) else f"{value!r}f"


LACKING = ("erfc", "expm1", "log1p", "tanh")
"""Functions of device/triton/formulas.py."""

TRITON = Dialect(
    forms={
        **_SHARED,
        **_calls("tl.NAME({0})", "exp", "log", "sqrt", "rsqrt", "abs", "sin", "cos", "erf", "floor", "ceil", "sigmoid"),
        **_calls("tl.NAME({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "maximum", "minimum"),
        **_calls("tl.NAME({0}, {1}, {2})", "where"),
        # device/triton/formulas.py has what Triton lacks
        **_calls("NAME({0})", *LACKING),
    },
    number=_python_number,
    named="{name} = {text}",
)
HOST = ("erfc", "expm1", "log1p")
"""Functions of opforge/numeric/formulas.h."""

CPP = Dialect(
    forms={
        **_SHARED,
        **_calls("opforge::NAME({0})", "exp", "tanh", "erf", *HOST),
        **_calls("std::NAME({0})", "log", "sqrt", "sin", "cos", "floor", "ceil"),
        **_calls("opforge::NAME({0}, {1})", "maximum", "minimum"),
        "abs": ("std::fabs({0})", POSTFIX, (LOOSE,)),
        "rsqrt": ("1.0f / std::sqrt({0})", PRODUCT, (LOOSE,)),
        "sigmoid": ("opforge::logistic({0})", POSTFIX, (LOOSE,)),
        "where": ("({0} ? {1} : {2})", ATOM, (SUM - 2, SUM, SUM)),
        "not": ("!{0}", SIGNED, (POSTFIX,)),
    },
    number=_cpp_number,
    named="const float {name} = {text};",
)
CUDA = Dialect(
    forms={
        **CPP.forms,
        **{name: (f"{name}f({{0}})", POSTFIX, (LOOSE,)) for name in ("exp", "tanh", "erf", "log", "sqrt", "rsqrt")},
        **{name: (f"{name}f({{0}})", POSTFIX, (LOOSE,)) for name in ("sin", "cos", "floor", "ceil", *HOST)},
        "abs": ("fabsf({0})", POSTFIX, (LOOSE,)),
        "maximum": ("opforge::larger({0}, {1})", POSTFIX, (LOOSE, LOOSE)),
        "minimum": ("opforge::smaller({0}, {1})", POSTFIX, (LOOSE, LOOSE)),
    },
    number=_cpp_number,
    named="const float {name} = {text};",
)
TILELANG = Dialect(
    forms={
        **_SHARED,
        **_calls("T.NAME({0})", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil"),
        **_calls("NAME({0}, {1})", "maximum", "minimum"),
        **_calls("NAME({0})", *HOST),
        "sigmoid": ("logistic({0})", POSTFIX, (LOOSE,)),
        "abs": ("magnitude({0})", POSTFIX, (LOOSE,)),
        "where": ("T.if_then_else({0}, {1}, {2})", POSTFIX, (LOOSE, LOOSE, LOOSE)),
        "and": ("both({0}, {1})", POSTFIX, (LOOSE, LOOSE)),
        "or": ("either({0}, {1})", POSTFIX, (LOOSE, LOOSE)),
        "not": ("negated({0})", POSTFIX, (LOOSE,)),
    },
    number=lambda value: f"T.float32({_python_number(value)})",
    named="{name} = {text}",
)
TORCH = Dialect(
    forms={
        **_SHARED,
        **{name: (f"{{0}}.{name}()", POSTFIX, (POSTFIX,)) for name in PRIMITIVES},
        "maximum": ("{0}.maximum({1})", POSTFIX, (POSTFIX, LOOSE)),
        "minimum": ("{0}.minimum({1})", POSTFIX, (POSTFIX, LOOSE)),
        "at_least": ("{0}.clamp(min={1})", POSTFIX, (POSTFIX, LOOSE)),
        "at_most": ("{0}.clamp(max={1})", POSTFIX, (POSTFIX, LOOSE)),
        "where": ("{1}.where({0}, {2})", POSTFIX, (LOOSE, POSTFIX, LOOSE)),
        "unless": ("{2}.where(~{0}, {1})", POSTFIX, (POSTFIX, LOOSE, POSTFIX)),
        "eq": ("{0}.eq({1})", POSTFIX, (POSTFIX, LOOSE)),
        "ne": ("{0}.ne({1})", POSTFIX, (POSTFIX, LOOSE)),
        "cumsum": ("{0}.cumsum(dim=-1)", POSTFIX, (POSTFIX,)),
        "cumprod": ("{0}.cumprod(dim=-1)", POSTFIX, (POSTFIX,)),
        # beside the values PyTorch gives their places
        "cummax": ("{0}.cummax(dim=-1).values", POSTFIX, (POSTFIX,)),
        "cummin": ("{0}.cummin(dim=-1).values", POSTFIX, (POSTFIX,)),
        "sum": ("{0}.sum(dim=-1, keepdim=True)", POSTFIX, (POSTFIX,)),
        "mean": ("{0}.mean(dim=-1, keepdim=True)", POSTFIX, (POSTFIX,)),
        "max": ("{0}.amax(dim=-1, keepdim=True)", POSTFIX, (POSTFIX,)),
        "min": ("{0}.amin(dim=-1, keepdim=True)", POSTFIX, (POSTFIX,)),
    },
    number=_python_number,
    named="{name} = {text}",
)

_LOCALS = {
    "dot": "sums",
    "sum": "total",
    "mean": "mean",
    "max": "top",
    "min": "least",
    "rsqrt": "scale",
    "exp": "raised",
    "cumsum": "sums",
    "cumprod": "products",
    "cummax": "highest",
    "cummin": "lowest",
}


class Writer:
    """Writes values of one program in one language.

    `known` maps values to names that exist already; `lines` collects the statements that were needed. `taken` are names
    that mean something there.
    """

    def __init__(self, program: Program, dialect: Dialect, taken: Collection[str]) -> None:
        self.program, self.dialect = program, dialect
        self.taken = {*taken, *(name for name, _ in program.reads), *(name for name, _ in program.parameters)}
        self.taken |= {write.name for write in program.writes}
        self.known: dict[int, str] = {}
        self.lines: list[str] = []
        self.reduce: Callable[[int, Value], str] | None = None

    def taken_lines(self) -> list[str]:
        """The statements that were needed since it was asked last."""
        lines, self.lines = self.lines, []
        return lines

    def name_for(self, number: int) -> str:
        """A name that nothing else has: what the formula calls the value, or a word for its operation."""
        given = dict(self.program.names).get(number)
        outputs = {write.name: write.value for write in self.program.writes}
        if given is not None and (given not in self.taken or outputs.get(given) == number):
            self.taken.add(given)
            return given
        return self.fresh(_LOCALS.get(self.program.values[number].operation, "part"))

    def fresh(self, base: str) -> str:
        """`base`, or with the first number behind it that makes it new."""
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def write(self, roots: Iterable[int]) -> list[str]:
        """The texts of `roots`; statements that they need are appended to `lines`."""
        wanted = list(roots)
        uses: Counter[int] = Counter(wanted)
        order: set[int] = set()
        waiting = list(wanted)
        while waiting:
            number = waiting.pop()
            if number in order or number in self.known:
                continue
            order.add(number)
            arguments = self.program.values[number].arguments
            uses.update(arguments)
            waiting += arguments
        texts: dict[int, tuple[str, int]] = {}
        for number in sorted(order):
            value = self.program.values[number]
            text, holds = self.text(number, value, texts)
            trivial = value.operation in ("const", "parameter", "read")
            # a condition stays where it is used: it is no float
            once = uses[number] == 1 or value.truth
            if not trivial and number not in wanted and (value.over or not once or len(text) > INLINE):
                text, holds = self.assigned(number, text, value), ATOM
            texts[number] = (text, holds)
        return [self.known[number] if number in self.known else texts[number][0] for number in wanted]

    def assigned(self, number: int, text: str, value: Value) -> str:
        name = self.name_for(number)
        kind = "const bool" if value.truth else "const float"
        self.lines.append(self.dialect.named.replace("const float", kind).format(name=name, text=text))
        self.known[number] = name
        return name

    def text(self, number: int, value: Value, texts: Mapping[int, tuple[str, int]]) -> tuple[str, int]:
        if value.operation == "const":
            return self.dialect.number(value.number), ATOM if value.number >= 0 else SIGNED
        if value.operation in ("parameter", "read"):
            return value.text, ATOM
        if value.over and self.reduce is not None:
            return self.reduce(number, value), LOOSE
        given = [(self.known[one], ATOM) if one in self.known else texts[one] for one in value.arguments]
        return self.formed(value, given)

    def formed(self, value: Value, given: list[tuple[str, int]]) -> tuple[str, int]:
        operation = value.operation
        if self.dialect is TORCH:
            operation, given = self.with_tensors(value, given)
        template, holds, needs = self.dialect.forms[operation]
        fitted = [f"({text})" if how < need else text for (text, how), need in zip(given, needs, strict=False)]
        return template.format(*fitted), holds

    def with_tensors(self, value: Value, given: list[tuple[str, int]]) -> tuple[str, list[tuple[str, int]]]:
        """PyTorch's methods need a tensor before the dot: numbers go behind it, or become one."""
        tensor = [is_tensor(self.program, number) for number in value.arguments]
        operation = value.operation
        if operation in ("add", "sub", "mul", "div", "neg", "lt", "le", "gt", "ge", "and", "or", "not"):
            if operation in ("lt", "le", "gt", "ge") and not any(tensor):
                given = [self.lifted(given[0]), given[1]]
            return operation, given
        if operation in ("maximum", "minimum", "eq", "ne"):
            if not tensor[0] and tensor[1]:
                given, tensor = given[::-1], tensor[::-1]
            if not tensor[0]:
                given = [self.lifted(given[0]), given[1]]
            if not tensor[1] and operation in ("maximum", "minimum"):
                operation = {"maximum": "at_least", "minimum": "at_most"}[operation]
            return operation, given
        if operation == "where":
            if not tensor[1] and tensor[2]:
                return "unless", given
            return "where", given if tensor[1] else [given[0], self.lifted(given[1]), given[2]]
        return operation, given if tensor[0] else [self.lifted(given[0])]

    def lifted(self, given: tuple[str, int]) -> tuple[str, int]:
        like = self.program.reads[0][0]
        return f"{like}.new_tensor({given[0]})", POSTFIX


def is_tensor(program: Program, number: int) -> bool:
    """Whether a value is a tensor in PyTorch: one that depends on an input, or that a method gave; the others are
    numbers.
    """
    value = program.values[number]
    if value.operation in ("const", "parameter", "add", "sub", "mul", "div", "neg", "and", "or", "not"):
        return any(is_tensor(program, one) for one in value.arguments)
    return True


def call(head: str, arguments: Iterable[str], indent: int = 0, tail: str = "") -> str:
    """`head(arguments)tail` on one line where it fits 120 columns, else an argument a line, as ruff writes it."""
    given = list(arguments)
    space = " " * indent
    line = f"{space}{head}({', '.join(given)}){tail}"
    if len(line) <= 120:
        return line
    inner = f"{space}    {', '.join(given)}"
    if len(inner) <= 120:
        return f"{space}{head}(\n{inner}\n{space}){tail}"
    return f"{space}{head}(\n" + "".join(f"{space}    {one},\n" for one in given) + f"{space}){tail}"
