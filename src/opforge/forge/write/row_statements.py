"""The statements of a kernel for one row, in C++ and CUDA: reductions and scans in their order, then what is stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import along, row_values, sources
from opforge.forge.write.emit import Dialect, Writer


class RowStatements(ABC):
    """What a dialect adds: how a row is reduced, scanned and stored. Each method returns the lines that it stands for.

    row    the index of the row, in text
    once   what stands before the store of an output with one element a row
    """

    row: ClassVar[str]
    once: ClassVar[str]

    def __init__(self, program: Program, layout: Layout, dialect: Dialect, taken: Collection[str]) -> None:
        self.program, self.layout = program, layout
        self.reads = [name for name, _ in program.reads]
        self.writes = [write.name for write in program.writes]
        self.writer = Writer(program, dialect, taken)

    def lines(self) -> list[str]:
        """All of them."""
        made = []
        for name in self.reads:
            if not along(self.layout, name):
                made.append(f"const float {name}_here = opforge::load_as_float({name}[{self.row}]);")
                self.writer.known.update(sources(self.program, {name: f"{name}_here"}))
        for number, value in enumerate(self.program.values):
            if value.scans or (value.reduces and number not in self.writer.known):
                made += self.once_a_row(value.arguments[0])
                name = self._named(number)
                if value.scans:
                    made += self.scanned(number, name, value)
                else:
                    made += self.reduced(name, value)
                    self.writer.known[number] = name
        for write in self.program.writes:
            if self.layout.tensors[write.name] == (0,):
                text = self.writer.write([write.value])[0]
                made += self.writer.taken_lines()
                made.append(f"{self.once}{write.name}[{self.row}] = opforge::store_from_float<T>({text});")
            else:
                made += [*self.once_a_row(write.value), *self.stored(write.name, write.value)]
        return made

    def once_a_row(self, root: int) -> list[str]:
        """What a row has one of below a value, computed once for the row."""
        writer, values = self.writer, self.program.values
        below = [one for one in row_values(self.program, root, self.program.axes[-1]) if one not in writer.known]
        for one, text in zip(below, writer.write(below), strict=True):
            if one not in writer.known and values[one].operation not in ("const", "parameter"):
                writer.assigned(one, text, values[one])
        return writer.taken_lines()

    def _named(self, number: int) -> str:
        name = self.writer.name_for(number)
        return self.writer.fresh(f"{name}_here") if name in self.writes else name

    @abstractmethod
    def reduced(self, name: str, value: Value) -> list[str]:
        """`name` becomes a row's reduction."""

    @abstractmethod
    def scanned(self, number: int, name: str, value: Value) -> list[str]:
        """`name` becomes a row's scan, the value `number`."""

    @abstractmethod
    def stored(self, name: str, root: int) -> list[str]:
        """A row of the output `name` becomes the value `root`."""
