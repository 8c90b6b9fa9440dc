"""Triton kernels of a program: a block of elements, a tile of rows and columns, or whole rows on chip."""

from __future__ import annotations

import re

from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import along, extent, places, row_offset, sizes_from
from opforge.forge.write.emit import LACKING, TRITON, Writer, call

IMPORTS = "import triton\nimport triton.language as tl\n\n"
SCANNED = {"cummax": "larger", "cummin": "smaller"}
"""What combines two elements of a scan, in device/triton/scans.py."""
WIDEST = 16384
"""Columns of a row that stays in registers: device/triton/norms.py WIDEST."""


def triton_file(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text."""
    if layout.family == "rows":
        return "triton_onchip.py", functions_imported(_rows(definition, program, layout))
    if len(layout.groups) == 1:
        return "triton_blocks.py", functions_imported(_blocks(definition, program))
    return "triton_tiles.py", functions_imported(_tiles(definition, program, layout))


def functions_imported(text: str) -> str:
    """A kernel's text with the import of what device/triton/formulas.py gives it, where isort has it."""
    used = [name for name in LACKING if re.search(rf"(?<![\w.]){name}\(", text)]
    if not used:
        return text
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("import triton.language")) + 2
    while lines[at].startswith("from opforge.device.triton.") and lines[at] < "from opforge.device.triton.formulas":
        at += 1
    return "\n".join([*lines[:at], f"from opforge.device.triton.formulas import {', '.join(used)}", *lines[at:]])


def _names(program: Program) -> tuple[list[str], list[str], list[str]]:
    return (
        [name for name, _ in program.reads],
        [write.name for write in program.writes],
        [name for name, _ in program.parameters],
    )


def _lines(lines: list[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


def _blocks(definition: Definition, program: Program) -> str:
    reads, writes, parameters = _names(program)
    writer = _writer(program)
    writer.write([write.value for write in program.writes])
    body = ["i, inside = block_of(n, BLOCK)"]
    body += [
        f"{name} = load_once({name}_ptr + i, inside)" + "  # [BLOCK], float32" * (not at)
        for at, name in enumerate(reads)
    ]
    body += _stores(program, writer, lambda name: (f"{name}_ptr + i", "inside"))
    pointers = [f"{name}_ptr" for name in (*reads, *writes)]
    kernel = f"{definition.name}_block"
    launch = call(
        f"{kernel}[(triton.cdiv(n, BLOCK),)]",
        [*reads, *writes, "n", *parameters, "BLOCK=BLOCK", "num_warps=num_warps"],
        4,
    )
    return (
        '"""One block of consecutive elements per program, in float32.\n\n'
        f"moves     {len(reads) + len(writes)} * elements * itemsize bytes: the least possible\n"
        "limits    16-byte accesses only where the tensors are 16-byte aligned, which Triton finds out by itself\n"
        '"""\n\n' + IMPORTS + "from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE, block_of, "
        "load_once, store_once\n\n"
        'DEFAULT = {"BLOCK": 1024, "num_warps": 4}\n\n\n@triton.jit\n'
        + call(f"def {kernel}", [*pointers, "n", *parameters, "BLOCK: tl.constexpr"], 0, ":")
        + "\n"
        + _lines(body)
        + "\n\n"
        + call("def launch", [*reads, *writes, "*", *parameters, "BLOCK", "num_warps"], 0, ":")
        + f"\n    n = {writes[0]}.numel()\n"
        + launch
        + "\n"
    )


def _tiles(definition: Definition, program: Program, layout: Layout) -> str:
    reads, writes, parameters = _names(program)
    last, full = extent(layout, layout.columns), writes[0]
    needed = places(layout, reads)
    writer = _writer(program)
    writer.write([write.value for write in program.writes])
    body = [f"row, col, inside = tile_of(rows, {last}, ROWS, COLS)"]
    if needed:
        body.append("# a row's place along each axis: divisions for each row, none for an element")
        body += [f"{name} = {text}" for name, text in needed]
    for name in reads:
        offset = row_offset(layout, name)
        if not along(layout, name):
            body.append(f"{name} = load_once({name}_ptr + {offset}, row < rows)[:, None]")
        elif not offset:
            body.append(f"{name} = load_once({name}_ptr + col, col < {last})[None, :]")
        else:
            body.append(f"{name} = load_once({name}_ptr + ({offset})[:, None] + col[None, :], inside)")
    body += _stores(program, writer, lambda name: (f"{name}_ptr + (row * {last})[:, None] + col[None, :]", "inside"))
    pointers = [f"{name}_ptr" for name in (*reads, *writes)]
    used = [extent(layout, group) for group in range(len(layout.groups))]
    text = "\n".join(body)
    extents = [name for name in used if name in text]
    kernel = f"{definition.name}_tile"
    sizes = sizes_from(program, layout, f"{full}.shape[AXIS]")
    rows = " * ".join(extent(layout, group) for group in range(layout.columns))
    given = [*reads, *writes, "rows", *extents, *parameters, "**sides", "num_warps=num_warps"]
    return (
        '"""A tile of rows and columns per program; what is broadcast is read once for a row or a column of it.\n\n'
        "moves     each full tensor once; what is broadcast comes from the caches\n"
        "limits    a last axis that is no power of two leaves lanes idle\n"
        '"""\n\n' + IMPORTS + "from opforge.device.triton.blocks import load_once, store_once\n"
        "from opforge.device.triton.tiles import LIMITS as LIMITS, SPACE as SPACE, tile_of, tiles_over\n\n"
        'DEFAULT = {"TILE": 4096, "num_warps": 4}\n'
        f"# columns are counted in 32 bits, rows and offsets in 64\n"
        f'SUPPORTS = {{"columns_in_32_bits": "{_columns(layout)} < 2147483648"}}\n\n\n@triton.jit\n'
        + call(
            f"def {kernel}",
            [*pointers, "rows", *extents, *parameters, "ROWS: tl.constexpr", "COLS: tl.constexpr"],
            0,
            ":",
        )
        + "\n"
        + _lines(body)
        + "\n\n"
        + call("def launch", [*reads, *writes, "*", *parameters, "TILE", "num_warps"], 0, ":")
        + "\n"
        + _lines(
            [f"if {full}.numel() == 0:", "    return", *(f"{name} = {text}" for name, text in sizes), f"rows = {rows}"]
        )
        + f"    grid, sides = tiles_over(rows, {last}, TILE)\n"
        + call(f"{kernel}[grid]", given, 4)
        + "\n"
    )


def _columns(layout: Layout) -> str:
    return " * ".join(f"prod({axis[1:]})" if axis.startswith("*") else axis for axis in layout.groups[-1])


def _rows(definition: Definition, program: Program, layout: Layout) -> str:
    reads, writes, parameters = _names(program)
    axis = program.axes[-1]
    writer = _writer(program)
    writer.reduce = lambda number, value: _reduction(program, writer, value)
    body = ["row, col, inside = tile_of_rows(rows, cols, ROWS, BLOCK)"]
    for name in reads:
        if layout.tensors[name] == (0, 1):
            body.append(f"{name} = load_float({name}_ptr + row * cols + col, inside)  # [ROWS, BLOCK]")
        elif along(layout, name):
            body.append(f"{name} = load_float({name}_ptr + col, col < cols)  # [1, BLOCK]")
        else:
            body.append(f"{name} = load_float({name}_ptr + row, row < rows)  # [ROWS, 1]")
    texts = writer.write([write.value for write in program.writes])
    body += writer.lines
    for write, text in zip(program.writes, texts, strict=True):
        where = (f"{write.name}_ptr + row * cols + col", "inside")
        if layout.tensors[write.name] == (0,):
            where = (f"{write.name}_ptr + row", "row < rows")
        body += _stored(writer, write.name, text, "store_float", where)
    pointers = [f"{name}_ptr" for name in (*reads, *writes)]
    full = next(name for name in reads if layout.tensors[name] == (0, 1))
    kernel = f"{definition.name}_rows"
    used = sorted({SCANNED[value.operation] for value in program.values if value.operation in SCANNED})
    scanned = [", ".join(used)] if used else []
    # what is reduced has elements; what is scanned may have none, and no number of rows then
    empty = [] if program.reductions else [f"if {full}.numel() == 0:", "    return"]
    return (
        '"""'
        "Whole rows in registers, several to a program when they are narrow: each tensor is read and "
        "written once.\n\n"
        "moves     the least possible: everything between the reads and the writes stays on chip\n"
        f"limits    rows of at most {WIDEST} elements; few, long rows leave most of a GPU idle\n"
        '"""\n\n' + IMPORTS + "from opforge.device.triton.norms import load_float, normalised_rows, store_float\n"
        "from opforge.device.triton.rows import tile_of_rows\n"
        + "".join(f"from opforge.device.triton.scans import {name}\n" for name in scanned)
        + "\n"
        f'SUPPORTS = {{"row_on_chip": "{axis} <= {WIDEST}"}}\n\n\n@triton.jit\n'
        + call(
            f"def {kernel}",
            [*pointers, "rows", "cols", *parameters, "ROWS: tl.constexpr", "BLOCK: tl.constexpr"],
            0,
            ":",
        )
        + "\n"
        + _lines(body)
        + "\n\n"
        + call("def launch", [*reads, *writes, *(["*"] if parameters else []), *parameters], 0, ":")
        + "\n"
        + _lines(
            [
                *empty,
                f"cols = {full}.shape[-1]",
                f"rows = {full}.numel() // cols",
                "grid, config = normalised_rows(rows, cols)",
            ]
        )
        + call(f"{kernel}[grid]", [*reads, *writes, "rows", "cols", *parameters, "**config"], 4)
        + "\n"
    )


def _reduction(program: Program, writer: Writer, value: Value) -> str:
    """A reduction or a scan along the columns: lanes beyond the row count as nothing."""
    number = value.arguments[0]
    text = writer.write([number])[0]
    if value.scans:
        # lanes beyond the row come after it: nothing of them gets into it
        if value.operation in ("cumsum", "cumprod"):
            return f"tl.{value.operation}({text}, axis=1)"
        return f"tl.associative_scan({text}, 1, {SCANNED[value.operation]})"
    neutral = {"max": '-float("inf")', "min": 'float("inf")'}.get(value.operation, "0.0")
    read = program.values[number].operation == "read"
    if not text.isidentifier():
        name = writer.name_for(number)
        writer.lines.append(f"{name} = {text}")
        writer.known[number] = text = name
    # what is read is 0 beyond the row already
    term = text if read and neutral == "0.0" else f"tl.where(col < cols, {text}, {neutral})"
    if value.operation in ("sum", "mean"):
        return f"tl.sum({term}, axis=1, keep_dims=True)" + " / cols" * (value.operation == "mean")
    # Triton's reduction passes NaN over; a row that has one is NaN
    nan, found = writer.fresh("has_nan"), writer.fresh("found")
    writer.lines.append(f"{nan} = tl.max((({text} != {text}) & (col < cols)).to(tl.int32), axis=1, keep_dims=True)")
    writer.lines.append(f"{found} = tl.{value.operation}({term}, axis=1, keep_dims=True)")
    return f'tl.where({nan} > 0, float("nan"), {found})'


def _writer(program: Program) -> Writer:
    writer = Writer(program, TRITON, TAKEN)
    writer.known.update(
        (number, value.text) for number, value in enumerate(program.values) if value.operation == "read"
    )
    return writer


def _stores(program: Program, writer: Writer, where) -> list[str]:  # type: ignore[no-untyped-def]
    texts = writer.write([write.value for write in program.writes if write.value not in writer.known])
    rest = iter(texts)
    body = list(writer.lines)
    for write in program.writes:
        text = writer.known[write.value] if write.value in writer.known else next(rest)
        body += _stored(writer, write.name, text, "store_once", where(write.name))
    return body


def _stored(writer: Writer, name: str, text: str, store: str, where: tuple[str, str]) -> list[str]:
    pointer, mask = where
    line = f"{store}({pointer}, {text}, {mask})"
    if len(line) <= 100 and text.isidentifier():
        return [line]
    local = name if name not in writer.known.values() else f"{name}_stored"
    return [f"{local} = {text}", f"{store}({pointer}, {local}, {mask})"]
