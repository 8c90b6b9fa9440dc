"""C++ kernels of a program for the CPU: maps over elements or parts of rows, and rows with their reductions."""

from __future__ import annotations

from dataclasses import replace

from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import along, extent, places, row_offset, sizes_from
from opforge.forge.write.emit import CPP, Writer, call


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
    full, original = next(name for name in reads if layout.tensors[name] == (0, 1)), program
    pointers: dict[str, str] = {}
    numbers: dict[str, str] = {}
    outputs = [write.name for write in program.writes]
    scans = [number for number, value in enumerate(program.values) if value.scans]
    body = ["  opforge::for_each_row(rows, cols, [&](int64_t row) {"]
    if scans:
        wide = "cols" if len(scans) == 1 else f"{len(scans)} * cols"
        body = [f"  opforge::for_each_buffered_row(rows, {wide}, [&](int64_t row, float* buffer) {{"]
    for name in reads:
        if along(layout, name):
            pointers[name] = name if layout.tensors[name] == (1,) else f"{name} + row * cols"
        else:
            body.append(f"    const float {name}_here = opforge::load_as_float({name}[row]);")
            numbers[name] = f"{name}_here"
    writer = Writer(program, CPP, TAKEN)
    writer.known.update(sources(program, numbers))
    inner = program.axes[-1]
    lines: list[str] = []

    def reduce(number: int, value: Value) -> str:
        lines.extend(f"    {line}" for line in writer.lines)
        writer.lines.clear()
        name = writer.name_for(number)
        if name in outputs:
            name = writer.fresh(f"{name}_here")
        how = {"max": "max_map", "min": "min_map"}.get(value.operation, "sum_map")
        head, *rest = _lambda(program, value.arguments[0], pointers, writer, 4)
        lines.append(f"    const float {name} = opforge::{how}(cols, {head}")
        lines.extend(rest)
        lines[-1] += f", {_given(program, value.arguments[0], pointers, reads)})"
        lines[-1] += " / static_cast<float>(cols);" if value.operation == "mean" else ";"
        writer.known[number] = name
        return name

    def scan(number: int, value: Value) -> None:
        """A scan goes into a buffer of its own, and is what is read from then on."""
        nonlocal program
        kept(value.arguments[0])
        at = scans.index(number)
        name = writer.name_for(number)
        if name in outputs:
            name = writer.fresh(f"{name}_here")
        lines.append(f"    float* {name} = buffer{f' + {at} * cols' * (at > 1)}{' + cols' * (at == 1)};")
        head, *rest = _lambda(program, value.arguments[0], pointers, writer, 4)
        lines.append(f"    opforge::{value.operation}_map(cols, {name}, {head}")
        lines.extend(rest)
        lines[-1] += f", {_given(program, value.arguments[0], pointers, reads)});"
        read = replace(value, operation="read", arguments=(), text=name, over="")
        program = replace(program, values=(*program.values[:number], read, *program.values[number + 1 :]))
        writer.program = program
        pointers[name] = name
        reads.append(name)

    def kept(root: int) -> None:
        """What a row has one of below a value, computed once for the row."""
        below = [one for one in row_values(program, root, inner) if one not in writer.known]
        for one, text in zip(below, writer.write(below), strict=True):
            _keep(writer, one, text)
        lines.extend(f"    {line}" for line in writer.lines)
        writer.lines.clear()

    writer.reduce = reduce
    # what a row has one of is computed in the order of its reductions
    for number, value in enumerate(program.values):
        if value.scans:
            scan(number, value)
        if value.reduces:
            below = [one for one in row_values(program, value.arguments[0], inner) if one not in writer.known]
            for one, text in zip(below, writer.write(below), strict=True):
                _keep(writer, one, text)
            if number not in writer.known:
                reduce(number, value)
    for write in program.writes:
        if layout.tensors[write.name] == (0,):
            text = writer.write([write.value])[0]
            lines.extend(f"    {line}" for line in writer.lines)
            writer.lines.clear()
            lines.append(f"    {write.name}[row] = opforge::store_from_float<T>({text});")
            continue
        below = [one for one in row_values(program, write.value, inner) if one not in writer.known]
        for one, text in zip(below, writer.write(below), strict=True):
            _keep(writer, one, text)
        lines.extend(f"    {line}" for line in writer.lines)
        writer.lines.clear()
        head, *rest = _lambda(program, write.value, pointers, writer, 4)
        lines.append(f"    opforge::map_row(cols, {write.name} + row * cols, {head}")
        lines.extend(rest)
        lines[-1] += f", {_given(program, write.value, pointers, reads)});"
    body += [*lines, "  });"]
    sizes = [("cols", f"{full}.size(-1)"), ("rows", f"cols == 0 ? 0 : {full}.numel() / cols")]
    program = original
    return cpp_text(
        "Rows spread over the threads, each read as often as it has reductions, from the cache after the first time.",
        ["moves     each tensor once while a row fits the cache",
         "limits    a single row runs on one thread"],
        '#include "opforge/rows/extremes.h"\n#include "opforge/rows/host.h"\n'
        + '#include "opforge/rows/scans.h"\n' * bool(scans),
        definition, program, body, sizes,
    )  # fmt: skip


def _keep(writer: Writer, number: int, text: str) -> None:
    value = writer.program.values[number]
    if number not in writer.known and value.operation not in ("const", "parameter"):
        writer.assigned(number, text, value)


def row_values(program: Program, root: int, inner: str) -> list[int]:
    """The values below `root` that a row has one of, nearest first, what they are made of left out."""
    found: dict[int, None] = {}
    waiting, seen = [root], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        value = program.values[number]
        if inner not in value.axes and value.operation not in ("const", "parameter"):
            found.setdefault(number)
        else:
            waiting += value.arguments
    return sorted(found)


def sources(program: Program, names: dict[str, str]) -> dict[int, str]:
    """What stands for the inputs in `names`, by their values' numbers."""
    return {
        number: names[value.text]
        for number, value in enumerate(program.values)
        if value.operation == "read" and value.text in names
    }


def needed(program: Program, root: int, names: dict[str, str], reads: list[str]) -> list[str]:
    """The inputs with elements of their own below `root`, in order of arguments; reductions stand for themselves."""
    found, waiting, seen = set[str](), [root], set[int]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        value = program.values[number]
        if value.operation == "read" and value.text in names:
            found.add(value.text)
        if not value.reduces:
            waiting += value.arguments
    return [name for name in reads if name in found]


def _given(program: Program, root: int, pointers: dict[str, str], reads: list[str]) -> str:
    return ", ".join(pointers[name] for name in needed(program, root, pointers, reads))


def _lambda(program: Program, root: int, pointers: dict[str, str], outer: Writer, indent: int) -> list[str]:
    """The lines of a lambda of the elements' floats; `outer` knows what a row has one of."""
    # in the order in which a call gives them: inputs, then what scans left
    taken = needed(program, root, pointers, list(dict.fromkeys([*dict(program.reads), *pointers])))
    inner = Writer(program, CPP, {*TAKEN, *outer.taken})
    inner.known = {**outer.known, **sources(program, {name: name for name in taken})}
    text = inner.write([root])[0]
    captured = any(name in "\n".join([*inner.lines, text]) for name in _outside(program, outer))
    head = f"[{'=' * captured}]({', '.join(f'float {name}' for name in taken)}) {{"
    if not inner.lines and len(head) + len(text) + indent < 50:
        return [f"{head} return {text}; }}"]
    space = " " * indent
    return [head, *(f"{space}  {line}" for line in inner.lines), f"{space}  return {text};", f"{space}}}"]


def _outside(program: Program, outer: Writer) -> list[str]:
    return [*outer.known.values(), *(name for name, _ in program.parameters)]


def _map(
    program: Program,
    head: str,
    root: int,
    pointers: dict[str, str],
    numbers: dict[str, str],
    indent: int,
    reads: list[str],
) -> list[str]:
    writer = Writer(program, CPP, TAKEN)
    writer.known.update(sources(program, numbers))
    first, *rest = _lambda(program, root, pointers, writer, indent)
    lines = [f"{' ' * indent}{head}{first}", *rest]
    lines[-1] += f", {_given(program, root, pointers, reads)});"
    return lines


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
