"""C++ kernels of a program for the CPU: maps over elements or parts of rows, and rows with their reductions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import along, extent, needed, places, row_offset, sizes_from, sources
from opforge.forge.write.emit import CPP, HOST, Dialect, Writer, call
from opforge.forge.write.row_statements import RowStatements


def cpp_file(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text."""
    if layout.family == "rows":
        return "cpp_rows.cpp", _rows(definition, program, layout)
    if len(layout.groups) == 1:
        return "cpp_simd.cpp", _flat(definition, program, layout)
    return "cpp_rows.cpp", _tiled(definition, program, layout)


def _flat(definition: Definition, program: Program, layout: Layout) -> str:
    reads = [name for name, _ in program.reads]
    body: list[str] = []
    for write in program.writes:
        body += _map(
            program, f"opforge::map(n, {write.name}, ", write.value, {name: name for name in reads}, {}, 2, reads
        )
    sizes = [("n", f"{program.writes[0].name}.numel()")]
    return cpp_text(
        "One parallel pass in float32 vectors.",
        [f"moves     {len(reads) + len(program.writes)} * elements * itemsize bytes: the least possible"],
        '#include "opforge/elementwise/host.h"\n',
        definition, program, body, sizes,
    )  # fmt: skip


def _tiled(definition: Definition, program: Program, layout: Layout) -> str:
    reads = [name for name, _ in program.reads]
    last = extent(layout, layout.columns)
    body = [
        "  const int64_t rows = " + " * ".join(extent(layout, group) for group in range(layout.columns)) + ";",
        f"  opforge::parallel_for(0, rows * {last}, opforge::kElementwiseGrain, [&](int64_t first, int64_t last) {{",
        "    for (int64_t i = first; i < last;) {",
        "      // a part of a row: threads begin and end anywhere",
        f"      const int64_t row = i / {last}, col = i % {last};",
        f"      const int64_t n = std::min({last} - col, last - i);",
    ]
    body += [f"      const int64_t {name} = {text.replace('//', '/')};" for name, text in places(layout, reads)]
    pointers, numbers = {}, {}
    for name in reads:
        offset = row_offset(layout, name)
        if along(layout, name):
            pointers[name] = f"{name} + {offset} + col" if offset else f"{name} + col"
        else:
            body.append(f"      const float {name}_here = opforge::load_as_float({name}[{offset}]);")
            numbers[name] = f"{name}_here"
    for write in program.writes:
        body += _map(program, f"opforge::map_row(n, {write.name} + i, ", write.value, pointers, numbers, 6, reads)
    body += ["      i += n;", "    }", "  });"]
    sizes = sizes_from(program, layout, f"{program.writes[0].name}.size(AXIS)")
    return cpp_text(
        "Rows along the last axis in float32 vectors, what is broadcast over them as a number.",
        ["moves     each full tensor once; what is broadcast comes from the caches",
         "limits    a last axis shorter than a vector is computed in parts of one"],
        '#include <algorithm>\n\n#include "opforge/elementwise/host.h"\n',
        definition, program, body, sizes,
    )  # fmt: skip


def _rows(definition: Definition, program: Program, layout: Layout) -> str:
    reads = [name for name, _ in program.reads]
    full = next(name for name in reads if layout.tensors[name] == (0, 1))
    statements = _Rows(program, layout, CPP, TAKEN).lines()
    scans = sum(value.scans for value in program.values)
    head = "  opforge::for_each_row(rows, cols, [&](int64_t row) {"
    if scans:
        wide = "cols" if scans == 1 else f"{scans} * cols"
        head = f"  opforge::for_each_buffered_row(rows, {wide}, [&](int64_t row, float* buffer) {{"
    body = [head, *(f"    {line}" for line in statements), "  });"]
    sizes = [("cols", f"{full}.size(-1)"), ("rows", f"cols == 0 ? 0 : {full}.numel() / cols")]
    return cpp_text(
        "Rows spread over the threads, each read as often as it has reductions, from the cache after the first time.",
        ["moves     each tensor once while a row fits the cache",
         "limits    a single row runs on one thread"],
        '#include "opforge/rows/extremes.h"\n#include "opforge/rows/host.h"\n'
        + '#include "opforge/rows/scans.h"\n' * bool(scans),
        definition, program, body, sizes,
    )  # fmt: skip


class _Rows(RowStatements):
    """A scan goes into a buffer of its own, and is what is read from then on: `program` has it as an input then."""

    row, once = "row", ""

    def __init__(self, program: Program, layout: Layout, dialect: Dialect, taken: Collection[str]) -> None:
        super().__init__(program, layout, dialect, taken)
        self.buffers: list[str] = []
        self.pointers = {
            name: name if layout.tensors[name] == (1,) else f"{name} + row * cols"
            for name in self.reads
            if along(layout, name)
        }

    def reduced(self, name: str, value: Value) -> list[str]:
        """A float that holds a row's reduction."""
        how = {"max": "max_map", "min": "min_map"}.get(value.operation, "sum_map")
        tail = ") / static_cast<float>(cols);" if value.operation == "mean" else ");"
        return self._mapped(f"const float {name} = opforge::{how}(cols, ", value.arguments[0], tail)

    def scanned(self, number: int, name: str, value: Value) -> list[str]:
        """A buffer that holds a row's scan."""
        at = len(self.buffers)
        place = ("", " + cols")[at] if at < 2 else f" + {at} * cols"
        head = f"opforge::{value.operation}_map(cols, {name}, "
        lines = [f"float* {name} = buffer{place};", *self._mapped(head, value.arguments[0], ");")]
        read = replace(value, operation="read", arguments=(), text=name, over="")
        values = (*self.program.values[:number], read, *self.program.values[number + 1 :])
        self.program = self.writer.program = replace(self.program, values=values)
        self.buffers.append(name)
        self.pointers[name] = name
        return lines

    def stored(self, name: str, root: int) -> list[str]:
        """A row of an output."""
        return self._mapped(f"opforge::map_row(cols, {name} + row * cols, ", root, ");")

    def _mapped(self, head: str, root: int, tail: str) -> list[str]:
        return _mapped(self.program, head, root, self.pointers, self.writer, 4, [*self.reads, *self.buffers], tail)


def _mapped(
    program: Program, head: str, root: int, pointers: dict[str, str], outer: Writer, depth: int, reads: list[str],
    tail: str = ");",
) -> list[str]:  # fmt: skip
    """The lines of a call: `head`, a lambda of the elements' floats that computes `root`, the pointers to its elements.

    outer   knows what a row has one of
    depth   how far the lines will be indented
    """
    given = ", ".join(pointers[name] for name in needed(program, root, pointers, reads))
    first, *rest = _lambda(program, root, pointers, outer, depth)
    lines = [f"{head}{first}", *rest]
    return [*lines[:-1], f"{lines[-1]}, {given}{tail}"]


def _lambda(program: Program, root: int, pointers: dict[str, str], outer: Writer, depth: int) -> list[str]:
    # in the order in which a call gives them: inputs, then what scans left
    taken = needed(program, root, pointers, list(dict.fromkeys([*dict(program.reads), *pointers])))
    inner = Writer(program, CPP, {*TAKEN, *outer.taken})
    inner.known = {**outer.known, **sources(program, {name: name for name in taken})}
    text = inner.write([root])[0]
    captured = any(name in "\n".join([*inner.lines, text]) for name in _outside(program, outer))
    head = f"[{'=' * captured}]({', '.join(f'float {name}' for name in taken)}) {{"
    if not inner.lines and len(head) + len(text) + depth < 50:
        return [f"{head} return {text}; }}"]
    return [head, *(f"  {line}" for line in inner.lines), f"  return {text};", "}"]


def _outside(program: Program, outer: Writer) -> list[str]:
    return [*outer.known.values(), *(name for name, _ in program.parameters)]


def _map(
    program: Program,
    head: str,
    root: int,
    pointers: dict[str, str],
    numbers: dict[str, str],
    depth: int,
    reads: list[str],
) -> list[str]:
    writer = Writer(program, CPP, TAKEN)
    writer.known.update(sources(program, numbers))
    return [f"{' ' * depth}{line}" for line in _mapped(program, head, root, pointers, writer, depth, reads)]


def cpp_text(
    idea: str, notes: list[str], includes: str, definition: Definition, program: Program, body: list[str],
    sizes: list[tuple[str, str]],
) -> str:  # fmt: skip
    reads = [name for name, _ in program.reads]
    writes = [write.name for write in program.writes]
    parameters = [name for name, _ in program.parameters]
    text = "\n".join(body)
    # opforge/rows/extremes.h has the larger and the smaller of two, and the logistic function
    if any(f"opforge::{name}" in text for name in ("maximum", "minimum", "logistic", "exp(", "erf(", "tanh(")):
        extra = '#include "opforge/rows/extremes.h"\n'
        includes = includes if extra in includes else includes + extra
    if any(f"opforge::{name}(" in text for name in HOST):
        includes += '#include "opforge/numeric/formulas.h"\n'
    floats = [f"float {name}" for name in parameters]
    inner = [f"const T* {name}" for name in reads] + [f"T* {name}" for name in writes]
    inner += [f"int64_t {name}" for name, _ in sizes] + floats
    outer = [f"opforge::TensorView {name}" for name in (*reads, *writes)] + [f"double {name}" for name in parameters]
    given = [f"opforge::data<const T>({name})" for name in reads] + [f"opforge::data<T>({name})" for name in writes]
    given += [name for name, _ in sizes] + [f"static_cast<float>({name})" for name in parameters]
    checks = [f"  OPFORGE_CHECK_CONTIGUOUS({name});" for name in (*reads, *writes)]
    checks += [f"  OPFORGE_CHECK_SAME_DTYPE({reads[0]}, {name});" for name in (*reads[1:], *writes)]
    checks += [f"  const int64_t {name} = {value};" for name, value in sizes]
    function = f"{definition.name}_of"
    return (
        f"// {idea}\n//\n"
        + "".join(f"// {note}\n" for note in notes)
        + includes
        + "\nnamespace {\n\ntemplate <typename T>\n"
        + call(f"void {function}", inner, 0, " {").replace(",\n)", "\n)")
        + f"\n{text}\n}}\n\n"
        + call(f"void {definition.name}", outer, 0, " {").replace(",\n)", "\n)")
        + "\n"
        + "\n".join(checks)
        + "\n"
        + call(f"OPFORGE_DISPATCH_DTYPE({reads[0]}, T, {function}<T>", given, 2, ");").replace(",\n  )", "\n  )")
        + f"\n}}\n\n}}  // namespace\n\nOPFORGE_EXPORT(run, {definition.name})\n"
    )
