"""CUDA kernels of a program, on request: elements in 16-byte vectors, tiles with broadcasting, and rows on chip."""

from __future__ import annotations

from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import along, extent, places, row_offset, sizes_from, sources
from opforge.forge.write.emit import CUDA, Writer, call
from opforge.forge.write.row_statements import RowStatements

NAMES = frozenset(
    ("across", "col", "blocks", "count", "vectors", "stream", "results", "operands", "op", "whole", "Formula", "result")
)
"""What else the kernels name, beside TAKEN."""


def cuda_file(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text: of elements, or of rows without scans."""
    if layout.family == "rows":
        return "cuda_rows.cu", _rows(definition, program, layout)
    if len(layout.groups) == 1:
        return "cuda_vectors.cu", _flat(definition, program)
    return "cuda_tiles.cu", _tiles(definition, program, layout)


def _flat(definition: Definition, program: Program) -> str:
    reads, writes = [name for name, _ in program.reads], [write.name for write in program.writes]
    parameters = [name for name, _ in program.parameters]
    writer = Writer(program, CUDA, TAKEN)
    writer.known.update(sources(program, {name: name for name in reads}))
    texts = writer.write([write.value for write in program.writes])
    arguments = [f"float {name}" for name in reads]
    if len(writes) == 1:
        body, kind = [*writer.lines, f"return {texts[0]};"], "float"
    else:
        arguments += [f"float& {name}_out" for name in writes]
        body = [*writer.lines, *(f"{name}_out = {text};" for name, text in zip(writes, texts, strict=True))]
        kind = "void"
    members = "".join(f"  float {name};\n" for name in parameters)
    struct = (
        f"struct Formula {{\n{members}  __device__ __forceinline__ {kind} operator()({', '.join(arguments)}) const {{\n"
    )
    struct += "".join(f"    {line}\n" for line in body) + "  }\n};\n\n"
    held = ", ".join(f"static_cast<float>({name})" for name in parameters)
    given = ", ".join(f"opforge::data<const T>({name})" for name in reads)
    stored = ", ".join(f"opforge::data<T>({name})" for name in writes)
    inside = [
        f"  const int64_t n = {writes[0]}.numel();",
        "  if (n == 0) return;",
        f"  OPFORGE_DISPATCH_DTYPE({reads[0]}, T, {{",
        f"    const opforge::Pointers<T, {len(writes)}> results{{{{{stored}}}}};",
        f"    const opforge::Pointers<const T, {len(reads)}> operands{{{{{given}}}}};",
        f"    const auto stream = opforge::current_stream({reads[0]});",
        f"    opforge::map<THREADS, UNROLL>(stream, n, results, Formula{{{held}}}, operands);",
        "  });",
    ]
    return whole_file(
        definition, program, inside, struct,
        "16-byte accesses, UNROLL vectors of each input in flight per thread.",
        [f"moves     {len(reads) + len(writes)} * elements * itemsize bytes: the least possible"],
        '#include "opforge/elementwise/device.h"\n#include "opforge/elementwise/formula_device.h"\n\n/* opforge\n'
        'like = "opforge/elementwise/device.h"\n[limits]\n'
        f'the_inputs_in_flight_fit_the_registers = "UNROLL * {len(reads)} <= 16"\n*/\n',
    )  # fmt: skip


def _tiles(definition: Definition, program: Program, layout: Layout) -> str:
    reads, writes = [name for name, _ in program.reads], [write.name for write in program.writes]
    parameters = [name for name, _ in program.parameters]
    last, full = extent(layout, layout.columns), writes[0]
    wide = [name for name in reads if along(layout, name)]
    body = [
        f"const int64_t across = {last} / N;",
        "const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;",
        "if (i >= rows * across) return;",
        "const int64_t row = i / across, col = (i - row * across) * N;",
        *(f"const int64_t {name} = {text.replace('//', '/')};" for name, text in places(layout, reads)),
    ]
    for name in reads:
        offset = row_offset(layout, name)
        if name in wide:
            terms = " + ".join(one for one in (name, offset, "col") if one)
            body.append(f"auto {name}_vec = opforge::Vec<T, N>::load({terms});")
        else:
            body.append(f"const float {name}_here = opforge::load_as_float({name}[{offset}]);")
    body.append(f"opforge::Vec<T, N> {', '.join(f'{name}_vec' for name in writes)};")
    writer = Writer(program, CUDA, {*TAKEN, "across", "col", "row", "i", "j"})
    writer.known.update(sources(program, {name: f"{name}_here" for name in reads}))
    texts = writer.write([write.value for write in program.writes])
    inner = [f"const float {name}_here = opforge::load_as_float({name}_vec[j]);" for name in wide]
    inner += writer.lines
    inner += [
        f"{name}_vec[j] = opforge::store_from_float<T>({text});" for name, text in zip(writes, texts, strict=True)
    ]
    body += ["#pragma unroll", "for (int j = 0; j < N; ++j) {", *(f"  {line}" for line in inner), "}"]
    body += [f"{name}_vec.store_global({name} + row * {last} + col);" for name in writes]
    text = "\n".join(body)
    extents = [extent(layout, group) for group in range(len(layout.groups)) if extent(layout, group) in text]
    pointers = [f"const T* {name}" for name in reads] + [f"T* {name}" for name in writes]
    counted = [f"int64_t {name}" for name in ("rows", *extents)]
    kernel = "template <typename T, int N>\n" + call(
        f"__global__ void {definition.name}_vectors",
        [*pointers, *counted, *(f"float {name}" for name in parameters)], 0, " {",
    ).replace(",\n)", "\n)") + "\n"  # fmt: skip
    kernel += "".join(f"{'' if line.startswith('#') else '  '}{line}\n" for line in body) + "}\n\n"
    checked = " && ".join(
        f"opforge::can_vectorize(opforge::data<const T>({name}), {last})" for name in (*wide, *writes)
    )
    given = [f"opforge::data<const T>({name})" for name in reads] + [f"opforge::data<T>({name})" for name in writes]
    given += ["rows", *extents, *(f"static_cast<float>({name})" for name in parameters)]
    rows = " * ".join(extent(layout, group) for group in range(layout.columns))
    inside = [
        f"  if ({full}.numel() == 0) return;",
        *(f"  const int64_t {name} = {size};" for name, size in sizes_from(program, layout, f"{full}.size(AXIS)")),
        f"  const int64_t rows = {rows};",
        f"  const auto stream = opforge::current_stream({reads[0]});",
        f"  OPFORGE_DISPATCH_DTYPE({reads[0]}, T, {{",
        f"    const bool vectors = {checked.replace(' && ', ' &&' + chr(10) + ' ' * 25)};",
        f"    const int64_t count = rows * {last} / (vectors ? opforge::kVecSize<T> : 1);",
        "    const int64_t blocks = opforge::ceil_div(count, THREADS);",
        "    OPFORGE_CHECK(blocks < (int64_t(1) << 31), ValueError,",
        '                  "the tensors are too long for one launch: split them");',
        "    if (vectors) {",
        f"      OPFORGE_LAUNCH(({definition.name}_vectors<T, opforge::kVecSize<T>>),",
        "                     static_cast<unsigned>(blocks), THREADS, 0,",
        f"                     stream, {', '.join(given)});".replace(
            ", opforge::data", ",\n                     opforge::data"
        ),
        "    } else {",
        f"      OPFORGE_LAUNCH(({definition.name}_vectors<T, 1>), static_cast<unsigned>(blocks), THREADS, 0,",
        f"                     stream, {', '.join(given)});".replace(
            ", opforge::data", ",\n                     opforge::data"
        ),
        "    }",
        "  });",
    ]
    return whole_file(
        definition, program, inside, kernel,
        "A vector of the last axis per thread; what is broadcast is read once for it.",
        ["moves     each full tensor once; what is broadcast comes from the caches",
         "limits    rows that are no multiple of 16 bytes, or begin elsewhere, go element by element"],
        '#include "opforge/elementwise/formula_device.h"\n\n/* opforge\n[space]\nTHREADS = [128, 256, 512]\n'
        "[default]\nTHREADS = 256\n*/\n",
    )  # fmt: skip


class _Rows(RowStatements):
    """Rows on chip: a visit of the row's elements for each reduction and each output."""

    row, once = "r", "if (row.leads()) "

    def __init__(self, program: Program, layout: Layout, full: str) -> None:
        super().__init__(program, layout, CUDA, {*TAKEN, "row", "r", "c", "j", "cols", "N"})
        self.full = full

    def visited(self, root: int, then: str, store: str = "") -> list[str]:
        """A visit of the row's elements that computes `root` and does `then` with its TEXT."""
        full, elements = self.full, [name for name in self.reads if along(self.layout, name)]
        inside = Writer(self.program, CUDA, {*TAKEN, *self.writer.taken})
        inside.known = {**self.writer.known, **sources(self.program, {name: f"{name}_here" for name in elements})}
        text = inside.write([root])[0]
        used = "\n".join([*inside.lines, text])
        others = [name for name in elements if name != full and f"{name}_here" in used]
        at = "int64_t c" if others or store else "int64_t"
        made = [f"row.visit([&]({at}, auto& {full}_vec) {{", f"  constexpr int N = sizeof({full}_vec) / sizeof(float);"]
        if others or store:
            made.append(
                f"  float {', '.join([*(f'{name}_vec[N]' for name in others), *(['result[N]'] if store else [])])};"
            )
        for name in others:
            where = "c" if self.layout.tensors[name] == (1,) else "r * cols + c"
            made.append(f"  opforge::load_constant<T, N>({name} + {where}, {name}_vec);")
        made += ["#pragma unroll", "  for (int j = 0; j < N; ++j) {"]
        for name in [full] * (f"{full}_here" in used) + others:
            made.append(f"    const float {name}_here = {name}_vec[j];")
        made += [f"    {line}" for line in inside.lines]
        return [*made, f"    {then.replace('TEXT', text)}", "  }", *([f"  {store}"] if store else []), "});"]

    def reduced(self, name: str, value: Value) -> list[str]:
        """A float of each thread's, and the reduction of them all."""
        start, then, end = {
            "max": ("-INFINITY", f"{name} = opforge::larger({name}, TEXT);", f"row.reduce({name}, opforge::Larger())"),
            "min": ("INFINITY", f"{name} = opforge::smaller({name}, TEXT);", f"row.reduce({name}, opforge::Smaller())"),
            "mean": ("0.0f", f"{name} += TEXT;", f"row.mean({name})"),
        }.get(value.operation, ("0.0f", f"{name} += TEXT;", f"row.reduce({name}, opforge::Sum())"))
        return [f"float {name} = {start};", *self.visited(value.arguments[0], then), f"{name} = {end};"]

    def scanned(self, number: int, name: str, value: Value) -> list[str]:
        """Programs with scans have a kernel of their own."""
        raise AssertionError(f"{value.operation} belongs to cuda_scans")

    def stored(self, name: str, root: int) -> list[str]:
        """A vector of an output at a time."""
        return self.visited(root, "result[j] = TEXT;", f"opforge::store_vec<T, N>({name} + r * cols + c, result);")


def _rows(definition: Definition, program: Program, layout: Layout) -> str:
    reads, writes = [name for name, _ in program.reads], [write.name for write in program.writes]
    parameters = [name for name, _ in program.parameters]
    full = next(name for name in reads if layout.tensors[name] == (0, 1))
    lines = _Rows(program, layout, full).lines()
    members = [f"const T* {name}" for name in reads if name != full] + [f"T* {name}" for name in writes]
    members += ["int64_t cols", *(f"float {name}" for name in parameters)]
    struct = "template <typename T>\nstruct Formula {\n" + "".join(f"  {one};\n" for one in members)
    struct += "\n  template <class Row>\n  __device__ __forceinline__ void operator()(Row& row, int64_t r) const {\n"
    struct += "".join(f"{'' if line.startswith('#') else '    '}{line}\n" for line in lines) + "  }\n};\n\n"
    held = [f"opforge::data<const T>({name})" for name in reads if name != full]
    held += [f"opforge::data<T>({name})" for name in writes]
    held += ["cols", *(f"static_cast<float>({name})" for name in parameters)]
    others = [name for name in (*reads, *writes) if along(layout, name) and name != full]
    checked = " && ".join(f"opforge::can_vectorize(opforge::data<const T>({name}), cols)" for name in others) or "true"
    inside = [
        f"  const int64_t cols = {full}.size(-1), rows = cols == 0 ? 0 : {full}.numel() / cols;",
        f"  OPFORGE_DISPATCH_DTYPE({full}, T, {{",
        braced("const Formula<T> op", held),
        f"    const bool vectors = {checked.replace(' && ', ' &&' + chr(10) + ' ' * 25)};",
        f"    const opforge::Rows<const T> whole{{opforge::data<const T>({full}), rows, cols, cols}};",
        f"    opforge::launch_rows<T>(op, whole, vectors, opforge::current_stream({full}));",
        "  });",
    ]
    return whole_file(
        definition, program, inside, struct,
        f"Rows on chip: {full} is read once and waits in registers or shared memory; the rest comes where it is used.",
        ["moves     each tensor once while a row fits shared memory; see opforge/rows/device.h",
         "limits    a row longer than a block's shared memory is read again for each reduction, from the caches"],
        '#include "opforge/elementwise/formula_device.h"\n#include "opforge/rows/device.h"\n',
    )  # fmt: skip


def braced(head: str, values: list[str]) -> str:
    """`head{values};` on one line where it fits, else a value a line."""
    line = f"    {head}{{{', '.join(values)}}};"
    return line if len(line) <= 120 else f"    {head}{{\n" + ",\n".join(f"        {one}" for one in values) + "\n    };"


def whole_file(
    definition: Definition, program: Program, inside: list[str], before: str, idea: str, notes: list[str], includes: str
) -> str:
    reads, writes = [name for name, _ in program.reads], [write.name for write in program.writes]
    outer = [f"opforge::TensorView {name}" for name in (*reads, *writes)]
    outer += [f"double {name}" for name, _ in program.parameters]
    checks = [f"  OPFORGE_CHECK_DEVICE({name});\n  OPFORGE_CHECK_CONTIGUOUS({name});" for name in (*reads, *writes)]
    checks += [f"  OPFORGE_CHECK_SAME_DTYPE({reads[0]}, {name});" for name in (*reads[1:], *writes)]
    return (
        f"// {idea}\n//\n"
        + "".join(f"// {note}\n" for note in notes)
        + includes
        + "\nnamespace {\n\n"
        + before
        + call(f"void {definition.name}", outer, 0, " {").replace(",\n)", "\n)")
        + "\n"
        + "\n".join([*checks, *inside])
        + f"\n}}\n\n}}  // namespace\n\nOPFORGE_EXPORT(run, {definition.name})\n"
    )
