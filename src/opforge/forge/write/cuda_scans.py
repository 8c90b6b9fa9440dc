"""The CUDA kernel of rows with scans, on request: opforge/rows/scans_device.h with the formula in it."""

from __future__ import annotations

from opforge.forge.program.definition import TAKEN, Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program, Value
from opforge.forge.program.walks import along
from opforge.forge.write.cpp_file import row_values, sources
from opforge.forge.write.cuda_file import braced, whole_file
from opforge.forge.write.emit import CUDA, Writer

NAMES = frozenset(("op", "stream", "Formula", "buffer"))
"""What else the kernel names, beside TAKEN."""
_COMBINE = {"cumsum": "Sum", "cumprod": "Product", "cummax": "Larger", "cummin": "Smaller"}
_REDUCE = {"max": "Larger", "min": "Smaller"}
FLOATS = 24576
"""Floats of a row's buffers: 96 KiB, which every GPU since sm_80 has for one block."""


def cuda_scans(definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The file's name and text."""
    return "cuda_scans.cu", _Scanned(definition, program, layout).text()


class _Scanned:
    """A kernel written statement by statement: scans and reductions in their order, then what is stored."""

    def __init__(self, definition: Definition, program: Program, layout: Layout) -> None:
        self.definition, self.program, self.layout = definition, program, layout
        self.reads = [name for name, _ in program.reads]
        self.writes = [write.name for write in program.writes]
        self.inner = program.axes[-1]
        self.writer = Writer(program, CUDA, {*TAKEN, *NAMES, *self.writes})
        self.lines: list[str] = []
        # what a scan left, by its value's number: the name of its buffer
        self.buffers: dict[int, str] = {}

    def text(self) -> str:
        program, writer = self.program, self.writer
        for name in self.reads:
            if not along(self.layout, name):
                self.lines.append(f"const float {name}_here = opforge::load_as_float({name}[r]);")
                writer.known.update(sources(program, {name: f"{name}_here"}))
        for number, value in enumerate(program.values):
            if value.scans:
                self.scanned(number, value)
            elif value.reduces and number not in writer.known:
                self.reduced(number, value)
        for write in program.writes:
            if self.layout.tensors[write.name] == (0,):
                text = writer.write([write.value])[0]
                self.flushed()
                self.lines.append(f"if (row.leads()) {write.name}[r] = opforge::store_from_float<T>({text});")
            else:
                self.kept(write.value)
                stored = f"{write.name}[r * cols + at] = opforge::store_from_float<T>(TEXT);"
                self.lines += self.visited("row.each(", write.value, stored)
        return self.file()

    def flushed(self) -> None:
        self.lines += self.writer.lines
        self.writer.lines.clear()

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

    def kept(self, root: int) -> None:
        """What a row has one of below a value, computed once for the row."""
        below = [one for one in row_values(self.program, root, self.inner) if one not in self.writer.known]
        for one, text in zip(below, self.writer.write(below), strict=True):
            if one not in self.writer.known and self.program.values[one].operation not in ("const", "parameter"):
                self.writer.assigned(one, text, self.program.values[one])
        self.flushed()

    def named(self, number: int) -> str:
        name = self.writer.name_for(number)
        return self.writer.fresh(f"{name}_here") if name in self.writes else name

    def scanned(self, number: int, value: Value) -> None:
        self.kept(value.arguments[0])
        name = self.named(number)
        self.lines.append(f"float* {name} = row.buffer({len(self.buffers)});")
        head = f"row.scan({name}, opforge::{_COMBINE[value.operation]}(), "
        self.lines += self.visited(head, value.arguments[0], "return TEXT;")
        self.buffers[number] = name

    def reduced(self, number: int, value: Value) -> None:
        self.kept(value.arguments[0])
        name = self.named(number)
        head = f"const float {name} = row.reduce(opforge::{_REDUCE.get(value.operation, 'Sum')}(), "
        self.lines += self.visited(head, value.arguments[0], "return TEXT;")
        if value.operation == "mean":
            self.lines[-1] = "}) / static_cast<float>(cols);"
        self.writer.known[number] = name

    def file(self) -> str:
        parameters = [name for name, _ in self.program.parameters]
        full = next(name for name in self.reads if self.layout.tensors[name] == (0, 1))
        members = [f"const T* {name}" for name in self.reads] + [f"T* {name}" for name in self.writes]
        members += ["int64_t cols", *(f"float {name}" for name in parameters)]
        struct = "template <typename T>\nstruct Formula {\n" + "".join(f"  {one};\n" for one in members)
        struct += "\n  __device__ __forceinline__ void operator()(const opforge::BlockRow& row, int64_t r) const {\n"
        struct += "".join(f"    {line}\n" for line in self.lines) + "  }\n};\n\n"
        held = [f"opforge::data<const T>({name})" for name in self.reads]
        held += [f"opforge::data<T>({name})" for name in self.writes]
        held += ["cols", *(f"static_cast<float>({name})" for name in parameters)]
        scans = len(self.buffers)
        inside = [
            f"  const int64_t cols = {full}.size(-1), rows = cols == 0 ? 0 : {full}.numel() / cols;",
            f"  const auto stream = opforge::current_stream({full});",
            f"  OPFORGE_DISPATCH_DTYPE({full}, T, {{",
            braced("const Formula<T> op", held),
            f"    opforge::launch_scanned_rows(op, rows, cols, {scans}, EACH, stream);",
            "  });",
        ]
        return whole_file(
            self.definition, self.program, inside, struct,
            "A block for each row: a thread scans a piece, the pieces' totals are scanned over the block.",
            ["moves     each tensor once; what a scan leaves waits in shared memory, as float32",
             f"limits    rows of at most {FLOATS // scans} elements; few rows leave most of a GPU idle"],
            '#include "opforge/rows/scans_device.h"\n\n/* opforge\n[supports]\n'
            f'row_in_shared_memory = "{self.inner} <= {FLOATS // scans}"\n'
            "[space]\nEACH = [4, 8, 16, 32]\n[default]\nEACH = 8\n*/\n",
        )  # fmt: skip
