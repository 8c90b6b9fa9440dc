"""What a formula computes, as a list of values: reads, operations element by element, reductions and scans, writes.

Every value has named axes; values meet by the names of their axes, never by position. A `*name` stands for any number
of axes that are walked as one. Common parts are one value. `shown()` prints a Program as `opforge new --show-ir` does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

REDUCTIONS = ("sum", "mean", "max", "min", "dot")
SCANS = ("cumsum", "cumprod", "cummax", "cummin")
"""Operations along an axis that stays: each element is of all up to it."""
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
TRUTHS = (*COMPARISONS, "and", "or", "not")
"""Operations whose values are conditions."""

FREE = ("const", "parameter", "read", "and", "or", "not", *COMPARISONS)
"""What is no floating-point arithmetic."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of a program.

    operation   "read", "parameter" and "const" are its sources; "sum", "mean", "max", "min" with `over` reduce, "dot"
                of two their products; SCANS keep the axis; the others work element by element
    arguments   the numbers of the values it is made of, all of them smaller than its own
    axes        its axes as they are written in shapes ("*lead"), in the program's order
    text        the name of what is read, or of the parameter
    number      the value of a constant
    over        the axis that a reduction takes away, or that a scan goes along; "" elsewhere
    """

    operation: str
    arguments: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    text: str = ""
    number: float = 0.0
    over: str = ""

    @property
    def reduces(self) -> bool:
        """Whether it takes an axis away."""
        return bool(self.over) and not self.scans

    @property
    def scans(self) -> bool:
        """Whether it goes along an axis that stays."""
        return self.operation in SCANS

    @property
    def truth(self) -> bool:
        """Whether it is a condition."""
        return self.operation in TRUTHS


@dataclass(frozen=True, kw_only=True)
class Write:
    """An output: its name, the number of its value, and its axes, which may be more than the value has."""

    name: str
    value: int
    axes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a formula computes.

    axes     every axis, in the order in which values have them
    reads    (name, axes) of every input, in the order of arguments; the axes in the order of memory
    names    what the formula calls a value, where it does
    """

    axes: tuple[str, ...]
    reads: tuple[tuple[str, tuple[str, ...]], ...]
    parameters: tuple[tuple[str, float], ...]
    values: tuple[Value, ...]
    writes: tuple[Write, ...]
    names: tuple[tuple[int, str], ...] = ()

    @property
    def reductions(self) -> tuple[Value, ...]:
        return tuple(value for value in self.values if value.reduces)

    @property
    def along(self) -> tuple[Value, ...]:
        """Its reductions and its scans."""
        return tuple(value for value in self.values if value.over)

    def uses(self) -> Counter[int]:
        """How often each value is used, by other values and by outputs."""
        counted = Counter(number for value in self.values for number in value.arguments)
        counted.update(write.value for write in self.writes)
        return counted


def shown(program: Program) -> str:
    """The program as text, one value a line."""
    lines = [f"axes       {', '.join(program.axes)}"]
    lines += [f"parameter  {name} = {value:g}" for name, value in program.parameters]
    width = len(str(len(program.values)))
    for number, value in enumerate(program.values):
        arguments = ", ".join(f"%{one}" for one in value.arguments)
        if value.operation == "const":
            what = f"const {value.number:g}"
        elif value.operation in ("read", "parameter"):
            what = f"{value.operation} {value.text}"
        elif value.reduces:
            what = f"reduce {value.operation} {arguments} over {value.over}"
        elif value.scans:
            what = f"scan {value.operation} {arguments} along {value.over}"
        else:
            what = f"{value.operation} {arguments}"
        name = dict(program.names).get(number)
        note = f"   # {name}" if name else ""
        lines.append(f"%{number:<{width}} = {what:<32} [{', '.join(value.axes)}]{note}".rstrip())
    lines += [f"write      {write.name}[{', '.join(write.axes)}] = %{write.value}" for write in program.writes]
    return "\n".join(lines)
