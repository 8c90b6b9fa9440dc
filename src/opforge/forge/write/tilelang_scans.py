"""The TileLang kernel of rows with scans, on request: a thread walks a row, and carries every scan along."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opforge.forge.program.definition import Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.write.tilelang_file import NAMES as ROW_NAMES, STORED, Rows, element_of, formula_function

NAMES = frozenset(ROW_NAMES)
"""What else the kernel names."""
_IDENTITY = {
    "cumsum": 'T.Cast("KIND", 0)',
    "cumprod": 'T.Cast("KIND", 1)',
    "cummax": 'T.float32(float("-inf"))',
    "cummin": 'T.float32(float("inf"))',
}
_CARRIED = {
    "cumsum": 'UNTIL + T.Cast("KIND", TEXT)',
    "cumprod": 'UNTIL * T.Cast("KIND", TEXT)',
    "cummax": "maximum(UNTIL, TEXT)",
    "cummin": "minimum(UNTIL, TEXT)",
}
_REDUCED = {"max": "maximum(UNTIL, TEXT)", "min": "minimum(UNTIL, TEXT)"}
_START = {"max": _IDENTITY["cummax"], "min": _IDENTITY["cummin"]}


def tilelang_scans(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text."""
    return "tilelang_scans.py", Scanned(definition, program, layout).text()


class Scanned(Rows):
    """Rows with scans: what needs one walks along its row, column after column, with running values by its side.

    tiled   what needs no scan goes a tile at a time, as in Rows; else everything walks
    double  running sums and products are carried in float64
    """

    tiled, double = True, True

    told = (
        '"""A thread for each row: it walks along the columns and carries every scan with it; what needs a scan walks\n'
        "anew.\n\n"
        "moves     the inputs once for each reduction and each result, from the caches where a block's rows fit\n"
        "limits    few rows leave most of a GPU idle, and neighbouring threads read different rows\n"
        'precision running sums and products are carried in float64\n"""\n\n'
    )
    sides = '    return {"height": 32, "width": 32}'

    def __init__(self, definition: Definition, program: Program, layout: Layout) -> None:
        super().__init__(definition, program, layout)
        # the fragment that carries a scan, by its value's number
        self.running: dict[int, str] = {}
        self.parts: list[str] = []

    def more_kept(self) -> list[str]:
        return [
            f'{name} = alloc((height,), "{self.held(self.program.values[number])}")'
            for number, name in self.running.items()
        ] + [f'{name} = alloc((height,), "float32")' for name in self.parts]

    def held(self, value: Value) -> str:
        """The dtype that a scan is carried in."""
        return "float64" if self.double and value.operation in ("cumsum", "cumprod") else "float32"

    def carried(self, forms: Mapping[str, str], value: Value) -> str:
        """A form of a scan in the dtype that it is carried in."""
        form = forms[value.operation]
        if self.held(value) == "float64":
            return form.replace("KIND", "float64")
        return form.replace('T.Cast("KIND", TEXT)', "TEXT").replace('T.Cast("KIND", ', "T.float32(")

    def given(
        self, root: int, col: str, stop: Collection[int] = frozenset()
    ) -> tuple[list[str], list[str], dict[int, str]]:
        names, texts, known = super().given(root, col, {*stop, *self.running})
        for number in self.below(root):
            name = self.running[number]
            known[number] = name
            names.append(name)
            wide = self.held(self.program.values[number]) == "float64"
            texts.append(f'T.Cast("float32", {name}[i])' if wide else f"{name}[i]")
        return names, texts, known

    def below(self, root: int) -> list[int]:
        """The scans that a value is computed from directly, in their order; of a scan itself that is the scan."""
        found, waiting, seen = set[int](), [root], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen or (number in self.fragments and number != root):
                continue
            seen.add(number)
            if number in self.running:
                found.add(number)
            else:
                waiting += self.program.values[number].arguments
        return sorted(found)

    def needed(self, root: int) -> list[int]:
        """All scans that must be carried along for a value, in their order."""
        found, waiting = set[int](), self.below(root)
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += self.below(self.program.values[number].arguments[0])
        return sorted(found)

    def scanned(self, number: int, value: Value) -> None:
        """A scan gets a running value and a function that takes it one column further."""
        self.kept(value.arguments[0])
        name = self.taken.fresh(self.taken.name_for(number) + "_until")
        names, _, known = self.given(value.arguments[0], "at")
        until = self.taken.fresh("until")
        form = self.carried(_CARRIED, value).replace("UNTIL", until)
        self.functions += formula_function(
            self.program, f"{name}_with", value.arguments[0], known, [until, *names], form
        )
        self.running[number] = name

    def walk(self, root: int, last: list[str]) -> list[str]:
        """A walk along the rows with what `root` needs carried along; at each column `last` is done."""
        scans = self.needed(root)
        lines = ["for i in each(height):"] * bool(scans)
        lines += [f"    {self.running[one]}[i] = {self.carried(_IDENTITY, self.program.values[one])}" for one in scans]
        lines += ["for at in T.serial(cols):", "    for i in each(height):", "        if row_at(block, i) < rows:"]
        for one in scans:
            name = self.running[one]
            _, texts, _ = self.given(self.program.values[one].arguments[0], "at")
            lines += self.wrapped(f"{name}[i] = {name}_with", [f"{name}[i]", *texts], 24, 12)
        return [*lines, *(f"            {line}" for line in last)]

    def reduced(self, number: int, value: Value) -> None:
        root = value.arguments[0]
        self.kept(root)
        if self.tiled and not self.below(root):
            super().reduced(number, value)
            return
        name = self.taken.fresh(self.taken.name_for(number) + "_row")
        names, texts, known = self.given(root, "at")
        until = self.taken.fresh("until")
        form = _REDUCED.get(value.operation, "UNTIL + TEXT").replace("UNTIL", until)
        self.functions += formula_function(self.program, f"{name}_with", root, known, [until, *names], form)
        summed = value.operation not in _REDUCED
        # sums by 32 terms at a time: a long one would lose digits
        carried = self.taken.fresh(f"{name}_part") if summed else name
        self.parts += [carried] * summed
        start = _START.get(value.operation, "T.float32(0)")
        self.body += ["for i in each(height):", f"    {name}[i] = {start}"]
        self.body += [f"    {carried}[i] = {start}"] * summed
        last = self.wrapped(f"{carried}[i] = {name}_with", [f"{carried}[i]", *texts], 24, 24)
        if summed:
            last += ["if at % 32 == 31:", f"    {name}[i] = {name}[i] + {carried}[i]", f"    {carried}[i] = {start}"]
        self.body += self.walk(root, last)
        if summed:
            ends = f"{name}[i] + {carried}[i]"
            if value.operation == "mean":
                ends = f'({ends}) / T.Cast("float32", cols)'
            self.body += ["for i in each(height):", f"    {name}[i] = {ends}"]
        self.fragments[number] = name

    def written(self, name: str, axes: tuple[str, ...], number: int) -> None:
        self.kept(number)
        if self.last not in axes or (self.tiled and not self.below(number)):
            super().written(name, axes, number)
            return
        names, texts, known = self.given(number, "at")
        self.functions += formula_function(self.program, f"{name}_of", number, known, names, STORED)
        self.body += self.walk(
            number, self.wrapped(f"{element_of(name, axes, self.last, 'at')} = {name}_of", texts, 24, 24)
        )
