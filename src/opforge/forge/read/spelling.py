"""A formula written from another source (a traced function, linalg.generic text): statements one after another, with
axes that are found by what meets what.

Every dimension begins as an axis of its own. What an operation lays over each other becomes one axis. At the end axes
are named d0, d1, … in the order of the inputs, and the fields of a definition are written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import TAKEN
from opforge.forge.program.lower import CONSTANTS, FUNCTIONS

_MARK = re.compile("\x00(\\d+)\x00")


@dataclass(frozen=True, kw_only=True)
class Spelled:
    """A value: its name or its number as text, and its axes by position; None for a dimension of one element."""

    text: str
    axes: tuple[int | None, ...] = ()


class Spelling:
    """Statements, inputs and axes as they are found."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, str]] = []
        self.inputs: dict[str, tuple[int, ...]] = {}
        self._parents: list[int] = []
        self._sizes: list[int | None] = []
        self._taken: set[str] = set()

    def axis(self, size: int | None) -> int:
        """A new axis; None: of any size."""
        self._parents.append(len(self._parents))
        self._sizes.append(size)
        return len(self._parents) - 1

    def root(self, axis: int) -> int:
        while self._parents[axis] != axis:
            axis = self._parents[axis]
        return axis

    def same(self, a: int, b: int, where: str) -> None:
        """Let two axes be one. Raises UsageError where their sizes differ."""
        first, second = sorted((self.root(a), self.root(b)))
        sizes = {self._sizes[first], self._sizes[second]} - {None}
        if len(sizes) > 1:
            raise UsageError(
                f"{where}: axes of {' and '.join(map(str, sorted(sizes, key=str)))} elements meet. Mend it."
            )
        self._parents[second] = first
        self._sizes[first] = sizes.pop() if sizes else None

    def name(self, wanted: str) -> str:
        """A name for a tensor that formulas and generated code take, `wanted` where it can be."""
        plain = re.sub(r"\W+", "_", wanted).strip("_") or "value"
        plain = plain if plain[0].isalpha() else f"v{plain}"
        if plain in TAKEN or plain in FUNCTIONS or plain in CONSTANTS or re.fullmatch(r"d\d+", plain):
            plain = f"{plain}_value"
        found, number = plain, 2
        while found in self._taken:
            found, number = f"{plain}_{number}", number + 1
        self._taken.add(found)
        return found

    def given(self, wanted: str, sizes: Sequence[int | None]) -> Spelled:
        """An input with a new axis for each dimension. Raises UsageError for a dimension of one element."""
        if 1 in sizes:
            raise UsageError(
                f"{wanted} has a dimension of one element, which axes with names do not have. Give it without, or with "
                "more elements in the example."
            )
        if not sizes:
            raise UsageError(
                f"{wanted} is a single number. Make it a Python number, which becomes part of the formula."
            )
        name = self.name(wanted)
        self.inputs[name] = tuple(self.axis(size) for size in sizes)
        return Spelled(text=name, axes=self.inputs[name])

    def over(self, axis: int | None, where: str) -> str:
        """`axis=…` of a reduction, named at the end."""
        if axis is None:
            raise UsageError(f"{where}: it reduces a dimension of one element. Leave it out.")
        return f"axis=\x00{axis}\x00"

    def let(self, wanted: str, expression: str, axes: Sequence[int | None]) -> Spelled:
        """A statement, and the value that it gives a name."""
        name = self.name(wanted)
        self.statements.append((name, expression))
        return Spelled(text=name, axes=tuple(axes))

    def together(self, values: Sequence[Spelled], where: str) -> tuple[int | None, ...]:
        """The axes of an operation element by element, dimensions laid over each other from the last one."""
        rank = max((len(value.axes) for value in values), default=0)
        found: list[int | None] = [None] * rank
        for value in values:
            for at, axis in enumerate(reversed(value.axes), start=1):
                other = found[-at]
                if axis is None:
                    continue
                if other is None:
                    found[-at] = axis
                else:
                    self.same(other, axis, where)
        return tuple(found)

    def fields(self, outputs: Sequence[Spelled], where: str) -> dict[str, Any]:
        """The fields of a definition: formula, inputs, outputs, and the sizes seen as a workload."""
        needed, used = {one.text for one in outputs}, list[tuple[str, str]]()
        for name, text in reversed(self.statements):
            if name in needed:
                needed |= set(re.findall(r"[A-Za-z_]\w*", text))
                used.insert(0, (name, text))
        names: dict[int, str] = {}
        for name, axes in self.inputs.items():
            for axis in axes if name in needed else ():
                names.setdefault(self.root(axis), f"d{len(names)}")

        def called(axis: int) -> str:
            name = names.get(self.root(axis))
            if name is None:
                raise UsageError(
                    f"{where}: an axis belongs to no input that the result depends on. Remove it, or use "
                    "one that has it."
                )
            return name

        def shape(axes: Sequence[int | None]) -> str:
            return " ".join(called(axis) for axis in axes if axis is not None)

        def resolved(text: str) -> str:
            return _MARK.sub(lambda match: called(int(match[1])), text)

        fields: dict[str, Any] = {
            "formula": "\n".join(f"{name} = {resolved(text)}" for name, text in used),
            "inputs": {name: shape(axes) for name, axes in self.inputs.items() if name in needed},
            "outputs": {one.text: shape(one.axes) for one in outputs},
        }
        sizes = {name: self._sizes[axis] for axis, name in names.items()}
        if all(size is not None for size in sizes.values()):
            fields["workloads"] = {"example": {"axes": sizes, "source": "the sizes of the example", "scale": "laptop"}}
        return fields
