"""TileLang kernels of a program, on request: tiles with broadcasting, and rows a tile at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import row_values, sources
from opforge.forge.write.emit import TILELANG, Writer, call

NAMES = {
    *TAKEN,
    "T",
    "block",
    "step",
    "i",
    "j",
    "rows",
    "cols",
    "kept",
    "height",
    "width",
    "across",
    "threads",
    "tile",
}
NAMES |= {"partial", "total", "has_nan", "variant", "program", "target", "across", "x_at", "from_float32", "storage"}
NAMES |= {
    "both",
    "either",
    "negated",
    "maximum",
    "minimum",
    "logistic",
    "expm1",
    "log1p",
    "erfc",
    "no_number",
    "loop",
    "alloc",
    "each",
    "row_at",
}
STORED = "from_float32(TEXT, dtype, target)"
_START = {"max": 'T.float32(float("-inf"))', "min": 'T.float32(float("inf"))'}


def tilelang_file(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text: of elements, or of rows without scans."""
    if layout.family == "rows":
        return "tilelang_rows.py", Rows(definition, program, layout).text()
    return "tilelang_tiles.py", _tiles(definition, program)


def size_of(axis: str) -> str:
    """The name of an axis's size in generated code."""
    return f"n_{axis.lstrip('*')}"


def place_of(axis: str) -> str:
    """The name of the place along an axis in generated code."""
    return f"at_{axis.lstrip('*')}"


def outer_places(outer: Sequence[str]) -> list[str]:
    """The places along axes that rows are counted over, as functions of a block and an index."""
    lines = []
    for at, axis in enumerate(outer):
        divided = "".join(f" // {size_of(later)}" for later in reversed(outer[at + 1 :]))
        rest = f" % {size_of(axis)}" if at else ""
        lines += [f"def at_{axis.lstrip('*')}(block, i):", f"    return row_at(block, i){divided}{rest}", ""]
    return lines


def element_of(name: str, axes: tuple[str, ...], last: str, col: str) -> str:
    """A tensor's element at a row of a block and a column."""
    places = [col if axis == last else f"at_{axis.lstrip('*')}(block, i)" for axis in axes]
    return f"{name}[{', '.join(places)}]"


def reader_of(name: str, axes: tuple[str, ...], last: str) -> list[str]:
    """A function of a tensor and a place in a block that gives its element as float32."""
    element = element_of(name, axes, last, "col")
    read = call("return to_float32", [element, "dtype", "target"], 8).split("\n")
    return [f"def {name}_at({name}, block, i, col):", *(line[4:] for line in read), ""]


def formula_function(
    program: Program, head: str, root: int, known: dict[int, str], arguments: list[str], form: str = "TEXT"
) -> list[str]:
    """A function of float32 expressions that computes one value, and returns it in a `form`."""
    writer = Writer(program, TILELANG, {*NAMES, *known.values(), *arguments})
    writer.known.update(known)
    text = writer.write([root])[0]
    lines = [f"def {head}({', '.join(arguments)}):", *(f"    {line}" for line in writer.lines)]
    return [*lines, f"    return {form.replace('TEXT', text)}", ""]


def parameters_of(program: Program) -> list[str]:
    """The parameters as float32."""
    return [f"{name} = T.float32({name})" for name, _ in program.parameters]


def signature(definition: Definition, program: Program) -> str:
    """The head of the program's function: its tensors, inputs first."""
    tensors = [(name, axes) for name, axes in program.reads] + [(write.name, write.axes) for write in program.writes]
    return call(
        f"def {definition.name}",
        [
            f"{name}: T.Tensor(({', '.join(map(size_of, axes))}{',' * (len(axes) == 1)}), kept)"
            for name, axes in tensors
        ], 4, ":",
    )  # fmt: skip


def _tiles(definition: Definition, program: Program) -> str:
    *outer, last = program.axes
    reads = [name for name, _ in program.reads]
    row, col = "row_at(block, i)", "col_at(block, j)"
    body = [f'{size_of(axis)} = T.dynamic("{size_of(axis)}", "int64")' for axis in program.axes]
    body += [f"rows, cols = {' * '.join(map(size_of, outer)) or 1}, {size_of(last)}", "kept = storage(dtype, target)"]
    body += ["height, across = tile // width, T.ceildiv(cols, width)", *parameters_of(program), ""]
    body += ["def row_at(block, i):", "    return block // across * height + i", ""]
    body += ["def col_at(block, j):", "    return block % across * width + j", "", *outer_places(program.axes[:-1])]
    for name, axes in program.reads:
        body += reader_of(name, axes, last)
    known = sources(program, {one: one for one in reads})
    for write in program.writes:
        body += formula_function(program, f"{write.name}_of", write.value, known, reads, STORED)
    given = [f"{name}_at({name}, block, i, {col})" for name in reads]
    stores = [
        call(f"{element_of(write.name, write.axes, last, col)} = {write.name}_of", given, 20)
        for write in program.writes
    ]
    inner = [
        "    @T.prim_func",
        signature(definition, program),
        "        with T.Kernel(T.ceildiv(rows, height) * across, threads=threads) as block:",
        "            for i, j in T.Parallel(height, width):",
        f"                if both({row} < rows, {col} < cols):",
        *stores,
    ]
    named = " * ".join([f"prod({last[1:]})"] if last.startswith("*") else [last])
    size = f'math.prod(axes["{last[1:]}"])' if last.startswith("*") else f'axes["{last}"]'
    return (
        '"""A tile of rows and columns per thread block, one element per access; wide tiles for wide rows, tall ones\n'
        "for narrow rows.\n\n"
        "moves     each full tensor once; what is broadcast comes from the caches\n"
        "limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the\n"
        '          instructions\n"""\n\n'
        + "import math\n\n" * last.startswith("*")
        + "import tilelang.language as T\n\n"
        + tools_imported(body, stores, ["both("])
        + '\nSPACE = {"tile": (1024, 2048, 4096), "threads": (128, 256, 512)}\n'
        'LIMITS = {"every_thread_has_work": "tile >= threads"}\nDEFAULT = {"tile": 2048, "threads": 256}\n'
        f'SUPPORTS = {{"columns_in_32_bits": "{named} < 2147483648"}}\n\n\n'
        f'def variant(axes, dtype):\n    return {{"width": 8 if {size} <= 32 else 256}}\n\n\n'
        + call("def program", ["*", "dtype", "target", *dict(program.parameters), "tile", "threads", "width"], 0, ":")
        + "\n"
        + "".join(f"    {line}".rstrip() + "\n" for line in body)
        + "\n".join(inner)
        + f"\n\n    return {definition.name}\n"
    )


def tools_imported(*texts: list[str]) -> str:
    """The imports of what lines of code call."""
    text = "\n".join(line for lines in texts for line in lines)
    formulas = [
        name
        for name in (
            "either",
            "erfc",
            "expm1",
            "log1p",
            "logistic",
            "magnitude",
            "maximum",
            "minimum",
            "negated",
            "no_number",
        )
        if f"{name}(" in text
    ]
    tools = ["from_float32", "storage", "to_float32"]
    tools += [
        name for name, used in (("both", "both("), ("loop", "loop(target)"), ("tile", "tile(target)")) if used in text
    ]
    shown = f"from opforge.device.tilelang.formulas import {', '.join(formulas)}\n" if formulas else ""
    return shown + f"from opforge.device.tilelang.tools import {', '.join(sorted(tools))}\n"


class Rows:
    """Rows with their reductions, written statement by statement.

    told    what the file says of itself; sides: the body of its `variant`, with LAST for the last axis
    deeper  spaces by which the body stands deeper than in a kernel of its own
    """

    deeper = 0

    told = (
        '"""Rows a tile at a time, with one partial result for each column of the tile; each reduction reads its\n'
        "row again, from the caches.\n\n"
        "moves     the inputs once for each reduction that needs them, and once for the result\n"
        "limits    none in width; the C target runs its rows one after another, on one core\n"
        '"""\n\n'
    )
    sides = (
        '    cols = axes["LAST"]\n    if cols <= 128:\n'
        '        return {"height": 8, "width": 32 if cols <= 32 else 128}\n'
        '    return {"height": 1, "width": 1024 if cols <= 1024 else 4096}'
    )

    def __init__(self, definition: Definition, program: Program, layout: Layout) -> None:
        self.definition, self.program, self.layout = definition, program, layout
        self.reads = [name for name, _ in program.reads]
        self.last = program.axes[-1]
        # what a row has one of, by value: the name of its fragment
        self.fragments: dict[int, str] = {}
        self.taken = Writer(program, TILELANG, NAMES)
        self.functions: list[str] = []
        self.body: list[str] = []

    def text(self) -> str:
        program = self.program
        for number, value in enumerate(program.values):
            if value.reduces:
                self.reduced(number, value)
            elif value.scans:
                self.scanned(number, value)
        for write in program.writes:
            self.written(write.name, write.axes, write.value)
        *outer, last = program.axes
        head = [f'{size_of(axis)} = T.dynamic("{size_of(axis)}", "int64")' for axis in program.axes]
        head += [f"rows, cols = {' * '.join(map(size_of, outer))}, {size_of(last)}", "kept = storage(dtype, target)"]
        head += ["alloc, each = tile(target), loop(target)", *parameters_of(program), ""]
        head += ["def row_at(block, i):", "    return block * height + i", "", *outer_places(program.axes[:-1])]
        for name, axes in program.reads:
            head += reader_of(name, axes, last)
        head += self.functions
        nan = any("has_nan" in line for line in self.body)
        tiles = any("partial[" in line for line in self.body)
        kept = ['partial = alloc((height, width), "float32")', 'total = alloc((height,), "float32")'] * tiles
        kept += ['has_nan = alloc((height,), "float32")'] * nan
        kept += [f'{name} = alloc((height,), "float32")' for name in dict.fromkeys(self.fragments.values())]
        kept += self.more_kept()
        inner = [
            "    @T.prim_func",
            signature(self.definition, program),
            "        with T.Kernel(T.ceildiv(rows, height), threads=128 if height * width <= 1024 else 256) as block:",
            *(f"            {line}" for line in (*kept, *self.body)),
        ]
        return (
            self.told
            + "import tilelang.language as T\n\n"
            + tools_imported(head, self.body)
            + "\n\ndef variant(axes, dtype):\n"
            + self.sides.replace("LAST", last)
            + "\n\n\n"
            + call("def program", ["*", "dtype", "target", *dict(program.parameters), "height", "width"], 0, ":")
            + '\n    if target == "c":\n'
            "        # T.reduce_sum adds one after another there: a narrow tile keeps the sum accurate\n"
            "        width = min(width, 32)\n"
            + "".join(f"    {line}".rstrip() + "\n" for line in head)
            + "\n".join(inner)
            + f"\n\n    return {self.definition.name}\n"
        )

    def wrapped(self, head: str, arguments: list[str], indent: int, cut: int) -> list[str]:
        """The lines of a call that will stand `indent` deep in the file, without the first `cut` spaces of each."""
        lines = call(head, arguments, indent + self.deeper).split("\n")
        return [line[cut + self.deeper :] for line in lines]

    def more_kept(self) -> list[str]:
        """Further allocations of a block."""
        return []

    def scanned(self, number: int, value: Value) -> None:
        """What a subclass writes for a scan (write_tilelang_scans): a program that has one is given to it."""
        raise AssertionError(f"value {number} is a scan, {value.operation}: its program is written by another class")

    def given(
        self, root: int, col: str, stop: Collection[int] = frozenset()
    ) -> tuple[list[str], list[str], dict[int, str]]:
        """Names and texts of what a value is computed from at an element, and what stands for it. What is below the
        values of `stop` is left out, and so are they.
        """
        names: list[str] = []
        texts: list[str] = []
        known: dict[int, str] = {}
        waiting, seen = [root], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            if number in stop:
                continue
            value = self.program.values[number]
            if number in self.fragments and number != root:
                known[number] = self.fragments[number]
                if self.fragments[number] not in names:
                    names.append(self.fragments[number])
                    texts.append(f"{self.fragments[number]}[i]")
            elif value.operation == "read":
                known[number] = value.text
                if value.text not in names:
                    names.append(value.text)
                    texts.append(f"{value.text}_at({value.text}, block, i, {col})")
            else:
                waiting += value.arguments
        return names, texts, known

    def kept(self, root: int) -> None:
        """What a row has one of below a value, in fragments."""
        for number in row_values(self.program, root, self.last):
            value = self.program.values[number]
            if number not in self.fragments and value.operation not in ("const", "parameter", "read"):
                self.computed(number)

    def computed(self, number: int) -> None:
        """One value of a row from others, in a fragment of its own."""
        name = self.taken.fresh(self.taken.name_for(number) + "_row")
        names, texts, known = self.given(number, "0")
        self.functions += formula_function(self.program, f"{name}_of", number, known, names)
        self.fragments[number] = name
        self.body += ["for i in each(height):"]
        # an index beyond the rows would be read
        read = any("_at(" in text for text in texts)
        indent = "    " * (1 + read)
        self.body += ["    if row_at(block, i) < rows:"] * read
        self.body += self.wrapped(f"{name}[i] = {name}_of", texts, 12 + len(indent), 12)

    def reduced(self, number: int, value: Value) -> None:
        root = value.arguments[0]
        self.kept(root)
        name = self.taken.fresh(self.taken.name_for(number) + "_row")
        row, col = "row_at(block, i)", "step * width + j"
        names, texts, known = self.given(root, col)
        until = self.taken.fresh("until")
        form = {"max": f"maximum({until}, TEXT)", "min": f"minimum({until}, TEXT)"}
        known_form = form.get(value.operation, f"{until} + TEXT")
        self.functions += formula_function(self.program, f"{name}_with", root, known, [until, *names], known_form)
        start = _START.get(value.operation, "T.float32(0)")
        combined = self.wrapped(f"partial[i, j] = {name}_with", ["partial[i, j]", *texts], 24, 12)
        how = {"max": "max", "min": "min"}.get(value.operation, "sum")
        self.body += [
            "for i, j in each(height, width):",
            f"    partial[i, j] = {start}",
            "for step in T.serial(T.ceildiv(cols, width)):",
            "    for i, j in each(height, width):",
            f"        if both({row} < rows, {col} < cols):",
            *combined,
            f"T.reduce_{how}(partial, total, dim=1, clear=True)",
        ]
        if how != "sum":
            # the reduction drops NaN: rows that have one are found by a sum
            self.body += [
                "for i, j in each(height, width):",
                "    partial[i, j] = no_number(partial[i, j])",
                "T.reduce_sum(partial, has_nan, dim=1, clear=True)",
            ]
        ends = {"mean": 'total[i] / T.Cast("float32", cols)', "sum": "total[i]"}.get(value.operation)
        ends = ends or 'T.if_then_else(has_nan[i] > T.float32(0), T.float32(float("nan")), total[i])'
        self.body += ["for i in each(height):", f"    {name}[i] = {ends}"]
        self.fragments[number] = name

    def written(self, name: str, axes: tuple[str, ...], number: int) -> None:
        if self.last not in axes:
            self.kept(number)
            element = element_of(name, axes, self.last, "")
            self.body += ["for i in each(height):", "    if row_at(block, i) < rows:"]
            self.body.append(f"        {element} = from_float32({self.fragments[number]}[i], dtype, target)")
            return
        self.kept(number)
        row, col = "row_at(block, i)", "step * width + j"
        names, texts, known = self.given(number, col)
        self.functions += formula_function(self.program, f"{name}_of", number, known, names, STORED)
        stored = self.wrapped(f"{element_of(name, axes, self.last, col)} = {name}_of", texts, 24, 12)
        self.body += [
            "for step in T.serial(T.ceildiv(cols, width)):",
            "    for i, j in each(height, width):",
            f"        if both({row} < rows, {col} < cols):",
            *stored,
        ]
