"""The CUDA kernel of rows with scans, on request: opforge/rows/scans_device.h with the formula in it."""

from __future__ import annotations

from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import along, sources
from opforge.forge.write.cuda_file import braced, whole_file
from opforge.forge.write.emit import CUDA, Writer
from opforge.forge.write.row_statements import RowStatements

NAMES = frozenset(("op", "stream", "Formula", "buffer"))
"""What else the kernel names, beside TAKEN."""
_COMBINE = {"cumsum": "Sum", "cumprod": "Product", "cummax": "Larger", "cummin": "Smaller"}
_REDUCE = {"max": "Larger", "min": "Smaller"}
FLOATS = 24576
"""Floats of a row's buffers: 96 KiB, which every GPU since sm_80 has for one block."""


def cuda_scans(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text."""
    return "cuda_scans.cu", _text(definition, program, layout)


class _Scanned(RowStatements):
    """A block for each row, with a buffer in shared memory for each scan."""

    row, once = "r", "if (row.leads()) "

    def __init__(self, program: Program, layout: Layout) -> None:
        super().__init__(program, layout, CUDA, {*TAKEN, *NAMES, *(write.name for write in program.writes)})
        # what a scan left, by its value's number: the name of its buffer
        self.buffers: dict[int, str] = {}

    def visited(self, head: str, root: int, then: str) -> list[str]:
        """`head` with a lambda over a column that computes `root` and does `then` with its TEXT."""
        inside = Writer(self.program, CUDA, {*TAKEN, *NAMES, *self.writer.taken})
        elements = {name: f"{name}_here" for name in self.reads if along(self.layout, name)}
        inside.known = {**self.writer.known, **sources(self.program, elements)}
        inside.known |= {number: f"{name}[at]" for number, name in self.buffers.items()}
        text = inside.write([root])[0]
        used = "\n".join([*inside.lines, text])
        made = [f"{head}[&](int at) {{"]
        for name, here in elements.items():
            if here in used:
                where = "at" if self.layout.tensors[name] == (1,) else "r * cols + at"
                made.append(f"  const float {here} = opforge::load_as_float({name}[{where}]);")
        return [*made, *(f"  {line}" for line in inside.lines), f"  {then.replace('TEXT', text)}", "});"]

    def scanned(self, number: int, name: str, value: Value) -> list[str]:
        """A buffer that holds a row's scan."""
        declared = f"float* {name} = row.buffer({len(self.buffers)});"
        head = f"row.scan({name}, opforge::{_COMBINE[value.operation]}(), "
        lines = [declared, *self.visited(head, value.arguments[0], "return TEXT;")]
        self.buffers[number] = name
        return lines

    def reduced(self, name: str, value: Value) -> list[str]:
        """A float that holds a row's reduction."""
        head = f"const float {name} = row.reduce(opforge::{_REDUCE.get(value.operation, 'Sum')}(), "
        lines = self.visited(head, value.arguments[0], "return TEXT;")
        return [*lines[:-1], "}) / static_cast<float>(cols);"] if value.operation == "mean" else lines

    def stored(self, name: str, root: int) -> list[str]:
        """A row of an output."""
        return self.visited("row.each(", root, f"{name}[r * cols + at] = opforge::store_from_float<T>(TEXT);")


def _text(definition: Definition, program: Program, layout: Layout) -> str:
    statements = _Scanned(program, layout)
    reads, writes = statements.reads, statements.writes
    parameters = [name for name, _ in program.parameters]
    full = next(name for name in reads if layout.tensors[name] == (0, 1))
    members = [f"const T* {name}" for name in reads] + [f"T* {name}" for name in writes]
    members += ["int64_t cols", *(f"float {name}" for name in parameters)]
    struct = "template <typename T>\nstruct Formula {\n" + "".join(f"  {one};\n" for one in members)
    struct += "\n  __device__ __forceinline__ void operator()(const opforge::BlockRow& row, int64_t r) const {\n"
    struct += "".join(f"    {line}\n" for line in statements.lines()) + "  }\n};\n\n"
    held = [f"opforge::data<const T>({name})" for name in reads]
    held += [f"opforge::data<T>({name})" for name in writes]
    held += ["cols", *(f"static_cast<float>({name})" for name in parameters)]
    scans = len(statements.buffers)
    inside = [
        f"  const int64_t cols = {full}.size(-1), rows = cols == 0 ? 0 : {full}.numel() / cols;",
        f"  const auto stream = opforge::current_stream({full});",
        f"  OPFORGE_DISPATCH_DTYPE({full}, T, {{",
        braced("const Formula<T> op", held),
        f"    opforge::launch_scanned_rows(op, rows, cols, {scans}, EACH, stream);",
        "  });",
    ]
    return whole_file(
        definition, program, inside, struct,
        "A block for each row: a thread scans a piece, the pieces' totals are scanned over the block.",
        ["moves     each tensor once; what a scan leaves waits in shared memory, as float32",
         f"limits    rows of at most {FLOATS // scans} elements; few rows leave most of a GPU idle"],
        '#include "opforge/rows/scans_device.h"\n\n/* opforge\n[supports]\n'
        f'row_in_shared_memory = "{program.axes[-1]} <= {FLOATS // scans}"\n'
        "[space]\nEACH = [4, 8, 16, 32]\n[default]\nEACH = 8\n*/\n",
    )  # fmt: skip
